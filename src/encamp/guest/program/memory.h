/* A machine whose memory is used up. */
#ifndef ENCAMP_MEMORY_H
#define ENCAMP_MEMORY_H

#include <stddef.h>
#include <sys/types.h>

/* Have helpers, which are there before any command is. */
void memory_start(void);

/* A child has ended that was no command. */
void memory_reaped(pid_t pid);

/* A command begins; what was before is none of its affair. How many processes the kernel has ended
   for want of memory so far. To look takes milliseconds under emulation, and is done only where
   another command is there, or was since that was last known. */
unsigned long memory_begin(void);
void memory_ended_well(void);
/* Look now, if it is to be looked at: nobody waits. */
void memory_settle(void);

/* A sentence, if the kernel has ended more than that `before`: for a command that has failed. */
void memory_tell(unsigned long before, char *text, size_t room);

/* Milliseconds until memory_look() is due; -1: no command is running. */
int memory_deadline(void);

/* Have the kernel notice that there is no memory left. */
void memory_look(void);

#endif
