/* Which files are open: each stream is one, and nothing is held open that is another's. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "starter.h"

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

/* A stream that is closed would be some file of ours: nothing takes its place. */
void have_streams(void)
{
    for (int fd = 0; fd < 3; fd++) {
        if (fcntl(fd, F_GETFD) < 0)
            open("/dev/null", O_RDWR); /* the lowest number that is free */
    }
}

void close_from(unsigned first)
{
    if (syscall(SYS_close_range, first, ~0U, 0U) < 0) {
        for (int fd = (int)first; fd < 1024; fd++)
            close(fd);
    }
}
