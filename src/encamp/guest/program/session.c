#define _GNU_SOURCE
#include "session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "calls.h"
#include "console.h"
#include "identity.h"
#include "mounts.h"
#include "network.h"
#include "offers.h"
#include "power.h"
#include "stream.h"
#include "users.h"

enum { WRITE_LIMIT = 32768, RETRY_MS = 20, GONE_MS = 500, UNMET_MS = 20000, ROUNDS = 16 };

void session_start(struct session *session, int fd, bool stream_socket)
{
    session->fd = fd;
    session->stream_socket = stream_socket;
    session->readable = true;
    session->writable = true;
    frame_parser_reset(&session->parser);
}

size_t session_room(const struct session *session)
{
    return SESSION_OUT - (session->out_end - session->out_start);
}

uint8_t *session_reserve(struct session *session, size_t length)
{
    if (session_room(session) < FRAME_HEADER + length)
        return NULL;
    if (SESSION_OUT - session->out_end < FRAME_HEADER + length) {
        memmove(session->out, session->out + session->out_start,
                session->out_end - session->out_start);
        session->out_end -= session->out_start;
        session->out_start = 0;
    }
    return session->out + session->out_end + FRAME_HEADER;
}

void session_commit(struct session *session, uint8_t type, uint8_t channel, uint32_t stream,
                    size_t length)
{
    frame_header(session->out + session->out_end, type, channel, stream, (uint32_t)length);
    session->out_end += FRAME_HEADER + length;
}

static void drop_exec(struct session *session)
{
    free(session->exec);
    session->exec = NULL;
    session->exec_count = 0;
}

/* Forget everything about the host that was there: the next one starts with a HELLO. */
static void reset(struct session *session)
{
    streams_end(session);
    calls_end(session);
    drop_exec(session);
    session->out_start = session->out_end = 0;
    session->failed = 0;
}

static void answer(struct session *session, uint32_t stream, int error, const char *text)
{
    uint8_t *start = session_reserve(session, REPLY_ROOM - FRAME_HEADER);
    uint8_t *at;

    if (start == NULL)
        return; /* cannot be: no frame is taken without this room */
    at = field_put_u32(start, KEY_ERROR, (uint32_t)error);
    at = field_put(at, KEY_TEXT, text, (uint32_t)strnlen(text, TEXT_LIMIT));
    session_commit(session, FRAME_DONE, 0, stream, (size_t)(at - start));
}

static void lost(struct session *session)
{
    say("a host sent what makes no sense; its session is dropped");
    reset(session);
    /* stream 0 has no request: this tells a host that would otherwise wait for ever */
    answer(session, 0, EPROTO, "the machine could not make sense of what the host sent");
}

static void greet(struct session *session, const struct frame *frame)
{
    struct timespec up;
    struct field nonce;

    reset(session);
    /* whatever was known of the last host, this is another */
    session->met = false;
    session->greeted = true;
    if (session->gone_at != 0)
        session->gone_at = now_ms() + UNMET_MS;
    identity_hello(frame->payload, frame->length);
    field_find(frame->payload, frame->length, KEY_NONCE, &nonce);
    clock_gettime(CLOCK_BOOTTIME, &up);
    uint8_t *start = session_reserve(session, REPLY_ROOM - FRAME_HEADER);
    uint8_t *at = field_put_u32(start, KEY_VERSION, PROTOCOL_VERSION);
    at = field_put(at, KEY_NONCE, nonce.bytes, NONCE_SIZE);
    at = field_put(at, KEY_MACHINE, identity_machine(), MACHINE_SIZE);
    at = field_put(at, KEY_PROGRAM, PROGRAM_VERSION, sizeof PROGRAM_VERSION - 1);
    at = field_put_u64(at, KEY_UPTIME,
                       (uint64_t)up.tv_sec * 1000000000 + (uint64_t)up.tv_nsec);
    session_commit(session, FRAME_WELCOME, 0, 0, (size_t)(at - start));
}

static bool transmit(struct session *session)
{
    bool went = false;

    if (session->retry_at != 0 && session->retry_at <= now_ms()) {
        session->retry_at = 0;
        session->writable = true;
    }
    while (session->writable && session->out_end > session->out_start) {
        size_t count = session->out_end - session->out_start;
        ssize_t written = write(session->fd, session->out + session->out_start,
                                count < WRITE_LIMIT ? count : WRITE_LIMIT);

        if (written > 0) {
            session->out_start += (size_t)written;
            session->met = true;
            went = true;
        } else if (written < 0 && errno == EINTR) {
            continue;
        } else {
            session->writable = false;
            /* ports need kernel memory to write; no event tells when there is some again */
            if (written < 0 && errno == ENOMEM)
                session->retry_at = now_ms() + RETRY_MS;
            else if (written < 0 && errno == EPIPE)
                session->closed = session->stream_socket;
        }
    }
    if (session->out_start == session->out_end)
        session->out_start = session->out_end = 0;
    return went;
}

/* Channel 1 marks a part of an EXEC that goes on in the next frame; channel 0 is the last. */
static bool execute(struct session *session, const struct frame *frame)
{
    const uint8_t *payload = frame->payload;
    size_t length = frame->length;
    bool whole = frame->channel == 0;

    if (frame->stream == 0 || frame->stream >= CALL_BIT || frame->channel > 1 ||
        stream_find(session, frame->stream) != NULL ||
        (session->exec != NULL && session->exec_stream != frame->stream))
        return false;
    if (!whole || session->exec != NULL) {
        if (session->exec_count + length > EXEC_LIMIT)
            return false;
        uint8_t *grown = realloc(session->exec, session->exec_count + length + 1);
        if (grown == NULL)
            return false;
        memcpy(grown + session->exec_count, payload, length);
        session->exec = grown;
        session->exec_count += length;
        session->exec_stream = frame->stream;
        payload = grown;
        length = session->exec_count;
    }
    if (!whole)
        return true;
    bool sound = fields_well_formed(payload, length);
    if (sound && session->failed != 0) {
        stream_refuse(session, frame->stream, session->failed, session->failed_text);
    } else if (sound) {
        struct field held;

        /* whoever has a command held waits for what was answered before */
        if (field_find(payload, length, KEY_HELD, &held))
            transmit(session);
        sound = stream_execute(session, frame->stream, payload, length);
    }
    drop_exec(session);
    return sound;
}

static bool request(struct session *session, const struct frame *frame)
{
    char text[TEXT_LIMIT] = "";
    int error = 0;

    if (!fields_well_formed(frame->payload, frame->length))
        return false;
    switch (frame->type) {
    case FRAME_MOUNT:
        error = mounts_add(frame->payload, frame->length, text, sizeof text);
        break;
    case FRAME_UNMOUNT:
        error = mounts_remove(text, sizeof text);
        break;
    case FRAME_CALLS:
        transmit(session); /* this takes long, and nobody waits for it */
        error = offers_make(session, frame->payload, frame->length, text, sizeof text);
        break;
    case FRAME_USER:
        error = users_add(frame->payload, frame->length, text, sizeof text);
        break;
    default:
        error = network_set(frame->payload, frame->length, text, sizeof text);
        break;
    }
    if (error != 0 && session->failed == 0 && frame->type != FRAME_UNMOUNT &&
        frame->type != FRAME_CALLS) {
        session->failed = error;
        memcpy(session->failed_text, text, sizeof text);
    }
    answer(session, frame->stream, error, text);
    return true;
}

/* Frames to streams that have ended are ignored: the host could not know yet. */
static bool stream_frame(struct session *session, const struct frame *frame)
{
    struct stream *stream = stream_find(session, frame->stream);
    static const uint8_t sizes[] = {[FRAME_CREDIT] = 4, [FRAME_SIGNAL] = 4, [FRAME_RESIZE] = 4,
                                    [FRAME_GO] = 0};

    bool alone = frame->type == FRAME_SIGNAL && frame->length == 5;

    if (frame->stream >= CALL_BIT)
        return calls_frame(session, frame);
    if (frame->type == FRAME_EXIT)
        return false;
    if (frame->type == FRAME_GO && frame->channel != 0)
        return false;
    if (frame->type != FRAME_DATA && frame->length != (alone ? 5 : sizes[frame->type]))
        return false;
    if (stream == NULL)
        return true;
    switch (frame->type) {
    case FRAME_DATA:
        return frame->channel == CHANNEL_IN && stream_input(stream, frame->payload, frame->length);
    case FRAME_END:
        stream_input_end(stream);
        return frame->channel == CHANNEL_IN;
    case FRAME_CREDIT:
        return stream_credit(stream, frame->channel, get_u32(frame->payload));
    case FRAME_GO:
        stream_go(stream);
        return true;
    case FRAME_SIGNAL:
        stream_signal(stream, get_u32(frame->payload), alone && frame->payload[4] == 1);
        return true;
    default:
        stream_resize(stream, get_u16(frame->payload), get_u16(frame->payload + 2));
        return true;
    }
}

static bool handle(struct session *session, const struct frame *frame)
{
    switch (frame->type) {
    case FRAME_HELLO:
        greet(session, frame);
        return true;
    case FRAME_EXEC:
        return execute(session, frame);
    case FRAME_DATA:
    case FRAME_END:
    case FRAME_CREDIT:
    case FRAME_SIGNAL:
    case FRAME_RESIZE:
    case FRAME_EXIT:
    case FRAME_GO:
        return stream_frame(session, frame);
    case FRAME_POWEROFF:
        power_off();
        return true;
    case FRAME_PING:
        session_commit(session, FRAME_PONG, 0, frame->stream, 0);
        return true;
    default:
        return request(session, frame);
    }
}

/* The kernel's word that a host has connected can come after the host's first bytes, and long
   after when the machine gets little of the processor. Until then reading looks like an end of
   input, which must not be taken for one: only a host that was there can hang up. */
static void hung_up(struct session *session)
{
    if (session->gone_at == 0 && !session->stream_socket) {
        session->gone_at = now_ms() + (session->met ? GONE_MS : UNMET_MS);
        return;
    }
    session->gone_at = 0;
    session->met = false;
    session->greeted = false;
    session->closed = session->stream_socket;
    session->in_count = 0;
    frame_parser_reset(&session->parser);
    reset(session);
}

/* True: bytes came. */
static bool receive(struct session *session)
{
    bool came = false;

    if (session->gone_at != 0 && session->gone_at <= now_ms())
        session->readable = true;
    for (int round = 0; round < ROUNDS; round++) {
        if (!session->readable || session->in_count == SESSION_IN)
            return came;
        ssize_t count = read(session->fd, session->in + session->in_count,
                             SESSION_IN - session->in_count);
        if (count > 0) {
            /* whoever was gone before, for example when a template was frozen, is back */
            session->gone_at = 0;
            session->in_count += (size_t)count;
            came = true;
        } else if (count < 0 && errno == EINTR) {
            continue;
        } else {
            session->readable = false;
            if (count < 0 && errno == EAGAIN) {
                session->met = true;
                session->gone_at = 0;
            } else if (session->gone_at == 0 || session->gone_at <= now_ms()) {
                hung_up(session);
            }
        }
    }
    return came;
}

static bool take_frames(struct session *session)
{
    size_t used = 0;
    enum frame_outcome outcome = FRAME_READY;

    /* No room to answer means that the host does not read; then it is not listened to either. */
    while (outcome != FRAME_WAIT && session_room(session) >= REPLY_ROOM) {
        struct frame frame;

        used += frame_take(&session->parser, session->in + used, session->in_count - used, &frame,
                           &outcome);
        if (outcome == FRAME_LOST) {
            lost(session);
        } else if (outcome == FRAME_READY && !handle(session, &frame)) {
            session->parser.hunting = true;
            lost(session);
        }
    }
    session->in_count -= used;
    memmove(session->in, session->in + used, session->in_count);
    return used > 0;
}

int session_deadline(const struct session *session)
{
    uint64_t now = now_ms();
    uint64_t soonest = session->retry_at;

    if (session->gone_at != 0 && (soonest == 0 || session->gone_at < soonest))
        soonest = session->gone_at;
    if (soonest == 0)
        return -1;
    return soonest <= now ? 0 : (int)(soonest - now);
}

bool session_pump(struct session *session)
{
    bool moved = receive(session);

    moved |= take_frames(session);
    moved |= streams_pump(session);
    moved |= calls_pump(session);
    moved |= transmit(session);
    return moved;
}
