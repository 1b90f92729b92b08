/* The names that the machine knows without asking anybody. */
#ifndef ENCAMP_HOSTS_H
#define ENCAMP_HOSTS_H

/* Keep the image's lines; write ours anew: the machine's own name, and `more`, whole lines. */
int hosts_write(const char *address, const char *name, const char *more);

#endif
