/* A machine whose memory is used up. */
#ifndef ENCAMP_MEMORY_H
#define ENCAMP_MEMORY_H

#include <stddef.h>
#include <sys/types.h>

/* Have helpers, which are there before any command is. */
void memory_start(void);

/* A child has ended that was no command. */
void memory_reaped(pid_t pid);

/* A command begins; what was before is none of its affair. */
void memory_begin(void);
void memory_ended_well(void);

/* A sentence, if the kernel has ended processes for want of memory since a command began. That takes
   milliseconds under emulation: for commands that have failed. */
void memory_tell(char *text, size_t room);

/* Milliseconds until memory_look() is due; -1: no command is running. */
int memory_deadline(void);

/* Have the kernel notice that there is no memory left. */
void memory_look(void);

#endif
