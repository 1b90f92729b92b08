#define _GNU_SOURCE
#include "calls.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "events.h"
#include "offers.h"
#include "stream.h"

enum {
    CALL_IN = FRAME_HEADER + CALL_PIECE,
    CALL_OUT = 2 * CALL_CREDIT + 8192, /* all that a host may send, and how it ended */
};

struct call {
    bool used;
    int fd;
    struct session *session;
    uint32_t id;
    uint32_t caller; /* the stream of the command that it belongs to, or 0 */
    bool known; /* the host has heard of it */
    bool begun; /* and of all that it asks for */
    bool over;  /* the host has said how it ended */
    bool readable;
    bool writable;
    uint8_t in[CALL_IN]; /* a frame of the caller's */
    size_t in_count;
    uint8_t *out; /* frames of the host's */
    size_t out_count;
};

static struct call calls[CALL_LIMIT];
static int watcher = -1;
static bool knocked;
static uint32_t last;

void calls_start(int epoll)
{
    watcher = epoll;
}

/* ── those who call ───────────────────────────────────────────────────────────────────────────── */

static void drop(struct call *call)
{
    close(call->fd);
    free(call->out);
    call->used = false;
    knocked = true; /* there is room for another */
}

/* The session of the command that it belongs to, or else one of its user's. */
static struct session *session_for(const struct ucred *peer, uint32_t *caller)
{
    const struct stream *its = stream_of(getsid(peer->pid));
    bool known = its != NULL && offers_allow(its->session, peer->uid);

    *caller = known ? its->id : 0;
    return known ? its->session : offers_to(peer->uid);
}

static void turn_away(int fd, int error, const char *sentence)
{
    uint8_t frame[FRAME_HEADER + TEXT_LIMIT];
    uint8_t *at = field_put_u32(frame + FRAME_HEADER, KEY_KIND, EXIT_NOT_STARTED);

    at = field_put_u32(at, KEY_VALUE, (uint32_t)error);
    at = field_put(at, KEY_TEXT, sentence, (uint32_t)strlen(sentence));
    frame_header(frame, FRAME_EXIT, 0, 0, (uint32_t)(at - frame - FRAME_HEADER));
    send(fd, frame, (size_t)(at - frame), MSG_NOSIGNAL | MSG_DONTWAIT);
    close(fd);
}

static void take_in(struct call *call, int fd)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    struct epoll_event event = {
        .events = EPOLLIN | EPOLLOUT | EPOLLET,
        .data.u64 = event_tag(EVENT_CALLER, (uint32_t)(call - calls)),
    };

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0) {
        close(fd);
        return;
    }
    uint32_t caller;
    struct session *session = session_for(&peer, &caller);
    uint8_t *out = session == NULL ? NULL : malloc(CALL_OUT);
    if (session == NULL && !offers_any()) {
        turn_away(fd, EAGAIN, "the job that could call it here has ended");
    } else if (session == NULL) {
        turn_away(fd, EPERM, "only the job's own user may call commands of the host");
    } else if (out == NULL || epoll_ctl(watcher, EPOLL_CTL_ADD, fd, &event) < 0) {
        free(out);
        turn_away(fd, EAGAIN, "the machine has no memory left for that");
    } else {
        *call = (struct call){.used = true,
                              .fd = fd,
                              .session = session,
                              .caller = caller,
                              .readable = true,
                              .writable = true,
                              .out = out};
    }
}

void calls_knock(void)
{
    knocked = true;
}

/* Some of those who wait: there may be others who have something to do. */
static bool let_in(void)
{
    struct call *call = calls;
    bool came = false;

    for (size_t count = 0; knocked && count < CALL_LIMIT; count++) {
        while (call < calls + CALL_LIMIT && call->used)
            call++;
        if (call == calls + CALL_LIMIT)
            break; /* they wait */
        int fd = offers_accept();
        if (fd < 0) {
            knocked = errno == EINTR || errno == ECONNABORTED;
        } else {
            take_in(call, fd);
            came = true;
        }
    }
    return came;
}

void calls_event(uint32_t index)
{
    calls[index % CALL_LIMIT].readable = true;
    calls[index % CALL_LIMIT].writable = true;
}

/* ── between the two ──────────────────────────────────────────────────────────────────────────── */

/* The host must not hear what it did not agree to from a process that anybody can write. */
static bool caller_may_say(const struct call *call, const uint8_t *header)
{
    uint8_t type = header[1], channel = header[2];
    uint32_t length = get_u32(header + 8);

    if (header[0] != FRAME_MAGIC || header[3] != 0 || length > CALL_PIECE)
        return false;
    switch (type) {
    case FRAME_CALL:
        return channel <= 1 && !call->begun;
    case FRAME_DATA:
        return channel == CHANNEL_IN && length > 0 && call->begun;
    case FRAME_END:
        return channel == CHANNEL_IN && length == 0 && call->begun;
    case FRAME_CREDIT:
        return (channel == CHANNEL_OUT || channel == CHANNEL_ERR) && length == 4 && call->begun;
    case FRAME_SIGNAL:
        return channel == 0 && length == 4 && call->begun;
    default:
        return false;
    }
}

/* A caller that is gone without the host's word that it may. Waits for room to say so. */
static bool hang_up(struct call *call)
{
    if (call->known) {
        if (session_room(call->session) < 2 * REPLY_ROOM)
            return false;
        uint8_t *start = session_reserve(call->session, REPLY_ROOM - FRAME_HEADER);
        uint8_t *at = field_put_u32(start, KEY_KIND, EXIT_KILLED);

        at = field_put_u32(at, KEY_VALUE, SIGHUP);
        at = field_put(at, KEY_TEXT, "", 0);
        session_commit(call->session, FRAME_EXIT, 0, call->id, (size_t)(at - start));
    }
    drop(call);
    return true;
}

/* One frame at most. True: something was done. */
static bool listen_to(struct call *call)
{
    size_t wanted = FRAME_HEADER;

    if (call->in_count >= FRAME_HEADER) {
        if (!caller_may_say(call, call->in))
            return hang_up(call);
        wanted += get_u32(call->in + 8);
    }
    if (call->in_count < wanted) {
        if (!call->readable)
            return false;
        ssize_t count = read(call->fd, call->in + call->in_count, wanted - call->in_count);
        if (count > 0) {
            call->in_count += (size_t)count;
            return true;
        }
        if (count < 0 && errno == EINTR)
            return true;
        if (count < 0 && errno == EAGAIN) {
            call->readable = false;
            return false;
        }
        return hang_up(call);
    }
    size_t length = wanted - FRAME_HEADER;
    if (session_room(call->session) < 2 * REPLY_ROOM + FRAME_HEADER + length)
        return false;
    if (!call->known) {
        /* in the order in which the host hears of them: later ones have greater numbers */
        last = last >= (uint32_t)INT32_MAX ? 1 : last + 1;
        call->id = (uint32_t)CALL_BIT | last;
        field_put_u32(session_reserve(call->session, FIELD_HEADER + 4), KEY_CALLER, call->caller);
        session_commit(call->session, FRAME_CALL, 1, call->id, FIELD_HEADER + 4);
    }
    memcpy(session_reserve(call->session, length), call->in + FRAME_HEADER, length);
    session_commit(call->session, call->in[1], call->in[2], call->id, length);
    call->known = true;
    call->begun = call->begun || (call->in[1] == FRAME_CALL && call->in[2] == 0);
    call->in_count = 0;
    return true;
}

static bool tell(struct call *call)
{
    bool moved = false;

    while (call->writable && call->out_count > 0) {
        ssize_t count = send(call->fd, call->out, call->out_count, MSG_NOSIGNAL);

        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0 && errno == EAGAIN) {
            call->writable = false;
            return moved;
        }
        if (count < 0) /* reading tells that it is gone */
            count = (ssize_t)call->out_count;
        call->out_count -= (size_t)count;
        memmove(call->out, call->out + count, call->out_count);
        moved = true;
    }
    if (call->over && call->out_count == 0)
        drop(call);
    return moved;
}

bool calls_frame(struct session *session, const struct frame *frame)
{
    struct call *call = calls;

    while (call < calls + CALL_LIMIT &&
           !(call->used && call->session == session && call->id == frame->stream))
        call++;
    if (call == calls + CALL_LIMIT || call->over)
        return true; /* the host could not know yet */
    if (call->out_count + FRAME_HEADER + frame->length > CALL_OUT) {
        /* the caller has agreed to more than it takes; nobody else is to suffer from that */
        call->out_count = 0;
        shutdown(call->fd, SHUT_RDWR);
        return true;
    }
    frame_header(call->out + call->out_count, frame->type, frame->channel, 0, frame->length);
    memcpy(call->out + call->out_count + FRAME_HEADER, frame->payload, frame->length);
    call->out_count += FRAME_HEADER + frame->length;
    call->over = frame->type == FRAME_EXIT;
    return true;
}

bool calls_pump(struct session *session)
{
    bool moved = let_in();

    for (struct call *call = calls; call < calls + CALL_LIMIT; call++) {
        if (call->used && call->session == session)
            moved |= tell(call);
        if (call->used && call->session == session && !call->over)
            moved |= listen_to(call);
    }
    return moved;
}

void calls_end(struct session *session)
{
    offers_withdraw(session);
    for (struct call *call = calls; call < calls + CALL_LIMIT; call++) {
        if (call->used && call->session == session)
            drop(call);
    }
}
