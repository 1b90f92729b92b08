/* The machine's ports to its host. */
#ifndef ENCAMP_PORTS_H
#define ENCAMP_PORTS_H

#include <stddef.h>

/* Open the ports `encamp.0` ... in order, waiting for them to appear; returns how many. */
size_t ports_open(int fds[], size_t limit);
/* Open the port of this name, once its host's end is there. Reads and writes of it wait. -1 with
   errno: ENOENT no such port, ENOTCONN nobody at the other end. */
int port_open(const char *name);

#endif
