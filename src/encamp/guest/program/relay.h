/* The way of a file system's messages between the machine's kernel and the share server of its
   host: a process of its own, so that the program can wait for a share like any other process. */
#ifndef ENCAMP_RELAY_H
#define ENCAMP_RELAY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Start the process. `port` leads to the server, `fuse` is /dev/fuse and mounted, `window` is the
   disk for large data or -1. Returns its id, or -1 with errno. The process ends by itself after the
   file system was unmounted: with 0 if the port is at the beginning of a message, as another relay
   needs it. */
pid_t relay_start(int port, int fuse, int window);
/* The same in this process. */
_Noreturn void relay_run(int port, int fuse, int window);

/* Tell the kernel how a request ended: 0 or an errno, and what its answer holds. */
void relay_answer(uint64_t unique, int error, const void *body, size_t length);

#endif
