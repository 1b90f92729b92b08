/* Calls: processes of the machine that have a command run on the host, by the user they both are.
   The caller (caller.c) speaks frames through a socket of the guest program's, which passes them
   on in a session; how much each side may send, caller and host settle between themselves. */
#ifndef ENCAMP_CALLS_H
#define ENCAMP_CALLS_H

#include "session.h"

enum {
    CALL_BIT = 1U << 31,  /* in the number of a stream: it was begun here */
    CALL_LIMIT = 32,      /* at a time; others wait */
    CALL_PIECE = 16384,   /* the longest payload of a caller */
    CALL_CREDIT = 65536,  /* for each output, to begin with; a frame costs its header, too */
};

void calls_start(int epoll);
/* Somebody may be at the socket, or one of those who are may have something to say. */
void calls_knock(void);
void calls_event(uint32_t index);
/* A frame of the host's to a caller; false: it makes no sense. */
bool calls_frame(struct session *session, const struct frame *frame);
/* Move what can be moved without waiting; true: something was. */
bool calls_pump(struct session *session);
void calls_end(struct session *session);

/* caller.c: was the program begun as one? Then it ends there, like the command on the host. */
void caller_main(char **argv);

#endif
