/* A process that is there before its command: for one that is held, and to begin when it may. It
   was forked when nobody waited, before the machine was cloned. */
#ifndef ENCAMP_PREPARED_H
#define ENCAMP_PREPARED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "stream.h"

struct prepared {
    pid_t pid;
    int fd[CHANNELS]; /* our ends of what will be its 0, 1 and 2 */
    int status;
    int go; /* a byte has it look at the command, another one has it begin that */
};

/* If there is none. */
void prepared_make(void);
/* Have the one that there is find an EXEC payload; false: there is none that could. */
bool prepared_take(struct prepared *taken, const uint8_t *payload, size_t length);
/* A child has ended. */
void prepared_reaped(pid_t pid);

#endif
