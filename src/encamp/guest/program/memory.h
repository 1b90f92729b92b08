/* A machine whose memory is used up. */
#ifndef ENCAMP_MEMORY_H
#define ENCAMP_MEMORY_H

/* Milliseconds until memory_look() is due; -1: no command is running. */
int memory_deadline(void);

/* Have the kernel notice that there is no memory left. */
void memory_look(void);

#endif
