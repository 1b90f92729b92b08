/* Commands: started, fed, listened to, signalled, and told about when they end. */
#ifndef ENCAMP_STREAM_H
#define ENCAMP_STREAM_H

#include <sys/types.h>

#include "session.h"

enum {
    STREAM_LIMIT = 128,
    CREDIT_START = 262144,
    CREDIT_BATCH = 65536,
    ENDING_GRACE_MS = 2000,
};

enum { CHANNEL_IN, CHANNEL_OUT, CHANNEL_ERR, CHANNELS };

enum exit_kind { EXIT_EXITED, EXIT_KILLED, EXIT_NOT_STARTED, EXIT_NOT_FURNISHED };

struct stream {
    bool used;
    struct session *session; /* NULL: its session is over and it is being ended */
    uint32_t id;
    pid_t pid;
    bool terminal;
    int fd[CHANNELS]; /* of a terminal: both 0 and 1 are its master side */
    bool ready[CHANNELS];
    bool end_due[CHANNELS];
    uint32_t credit[CHANNELS]; /* 0: what the host may still send; 1, 2: what we may */
    uint32_t passed;           /* stdin bytes passed on and not yet granted anew */
    uint8_t *ring;             /* stdin bytes that the command has not taken yet */
    size_t ring_start;
    size_t ring_count;
    bool input_ended;
    bool line_open; /* the last stdin byte of a terminal was not a newline */
    bool dead;
    int wait_status;
    size_t drain[CHANNELS]; /* what was in the pipes when the command died */
    int status;             /* read end of the pipe through which a failed start is told */
    int go;                 /* write end of the one that it is told through to begin, or -1 */
    uint64_t kill_at;
    unsigned long starved; /* what memory_begin() said when it began */
};

void streams_start(int epoll);
/* Is a command with this id running in this session? */
struct stream *stream_find(struct session *session, uint32_t id);
/* The command whose first process this is; NULL: of none. */
struct stream *stream_of(pid_t first);
/* Act on a whole EXEC payload. A failure is answered, not returned; false: malformed. */
bool stream_execute(struct session *session, uint32_t id, const uint8_t *payload, size_t length);
/* Say that a command was not started. */
void stream_refuse(struct session *session, uint32_t id, int error, const char *text);
/* False: more than the host had credit for. */
bool stream_input(struct stream *stream, const uint8_t *bytes, size_t count);
/* Forget what the command has not read and let it read no more. */
void stream_stop_input(struct stream *stream);
void stream_input_end(struct stream *stream);
bool stream_credit(struct stream *stream, unsigned channel, uint32_t more);
/* Let one that is held begin. */
void stream_go(struct stream *stream);
/* `alone`: to its first process, and not to all of its group */
void stream_signal(struct stream *stream, uint32_t number, bool alone);
void stream_resize(struct stream *stream, uint16_t rows, uint16_t columns);

/* Move what can be moved without waiting; true: something was. */
bool stream_pump(struct stream *stream);
bool streams_pump(struct session *session);
/* Is any command left, of whatever session? */
bool streams_any(void);
void streams_end(struct session *session);
/* Collect every child that ended, ours or orphaned. */
void streams_reap(void);
/* Kill those whose grace is over; returns milliseconds to the next such moment, or -1. */
int streams_deadline(void);
/* `broken`: the other side of the channel is gone. */
void stream_event(uint32_t index, unsigned channel, bool broken);
void stream_close(struct stream *stream, unsigned channel);
void stream_free(struct stream *stream);

#endif
