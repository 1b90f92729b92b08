/* One port's conversation with a host: its bytes in and out, and what each frame asks for. */
#ifndef ENCAMP_SESSION_H
#define ENCAMP_SESSION_H

#include "frames.h"

enum {
    SESSION_LIMIT = 8,
    SESSION_IN = 2 * FRAME_LIMIT,
    SESSION_OUT = 4 * FRAME_LIMIT,
    REPLY_ROOM = 2048,   /* the longest answer, header included */
    TEXT_LIMIT = 512,    /* the longest sentence in an answer */
    EXEC_LIMIT = 8 << 20 /* all parts of one EXEC together */
};

struct session {
    int fd;
    bool stream_socket; /* not a port: end of input means that the program ends */
    bool closed;
    bool readable;
    bool writable;
    uint64_t retry_at; /* a write found no memory; time of the next try, or 0 */
    bool met;          /* the kernel has said since the last HELLO that a host is there */
    bool greeted;      /* a host has introduced itself, and has not hung up */
    uint64_t gone_at;  /* the host seems to have hung up; time to make sure, or 0 */

    struct frame_parser parser;
    uint8_t in[SESSION_IN];
    size_t in_count;
    uint8_t out[SESSION_OUT];
    size_t out_start;
    size_t out_end;

    int failed; /* errno of the first request that failed, for every later EXEC */
    char failed_text[TEXT_LIMIT];
    uint8_t *exec; /* parts of an EXEC that is longer than one frame */
    size_t exec_count;
    uint32_t exec_stream;
};

void session_start(struct session *session, int fd, bool stream_socket);
/* Do what can be done without waiting. True: call again soon. */
bool session_pump(struct session *session);
/* Milliseconds until it wants to be pumped without an event, or -1. */
int session_deadline(const struct session *session);

/* Room for a payload after a header that is still to be filled in, or NULL. */
uint8_t *session_reserve(struct session *session, size_t length);
/* The payload is in place: put its header before it and send both. */
void session_commit(struct session *session, uint8_t type, uint8_t channel, uint32_t stream,
                    size_t length);
size_t session_room(const struct session *session);

#endif
