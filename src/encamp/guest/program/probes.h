/* What can be tested of a machine from inside, to tell whether it is ready. Each returns an exit
   code, 0 for yes, and says on stderr why not. */
#ifndef ENCAMP_PROBES_H
#define ENCAMP_PROBES_H

int probe_file(const char *path);
/* Does a TCP port take connections, on whatever address of the machine? */
int probe_port(const char *number);

#endif
