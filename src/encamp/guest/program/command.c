#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "console.h"
#include "events.h"
#include "launch.h"
#include "memory.h"
#include "mounts.h"
#include "prepared.h"
#include "stream.h"

enum { TERMINAL_DRAIN = 1 << 20 };

static struct stream streams[STREAM_LIMIT];
static unsigned turn; /* which stream goes first next time, so that none is starved */
static int watcher;

void streams_start(int epoll)
{
    watcher = epoll;
}

struct stream *stream_find(struct session *session, uint32_t id)
{
    for (struct stream *stream = streams; stream < streams + STREAM_LIMIT; stream++) {
        if (stream->used && stream->session == session && stream->id == id)
            return stream;
    }
    return NULL;
}

struct stream *stream_of(pid_t first)
{
    for (struct stream *stream = streams; stream < streams + STREAM_LIMIT; stream++) {
        if (stream->used && !stream->dead && stream->pid == first)
            return stream;
    }
    return NULL;
}

void stream_close(struct stream *stream, unsigned channel)
{
    if (stream->fd[channel] >= 0)
        close(stream->fd[channel]);
    stream->fd[channel] = -1;
}

/* One is kept for the next command: to map another is slow the first time in each clone. */
static uint8_t *kept;

static uint8_t *take_ring(void)
{
    uint8_t *ring = kept;

    kept = NULL;
    if (ring == NULL)
        ring = mmap(NULL, CREDIT_START, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return ring == MAP_FAILED ? NULL : ring;
}

static void give_ring(uint8_t *ring)
{
    if (kept == NULL)
        kept = ring;
    else if (ring != NULL)
        munmap(ring, CREDIT_START);
}

static void forget_go(struct stream *stream)
{
    if (stream->go >= 0)
        close(stream->go);
    stream->go = -1;
}

static void close_ends(struct stream *stream)
{
    for (unsigned channel = 0; channel < CHANNELS; channel++)
        stream_close(stream, channel);
    if (stream->status >= 0)
        close(stream->status);
    stream->status = -1;
    forget_go(stream);
}

void stream_free(struct stream *stream)
{
    close_ends(stream);
    give_ring(stream->ring);
    stream->used = false;
}

static int watch(struct stream *stream, unsigned channel, int fd)
{
    uint32_t index = (uint32_t)(stream - streams);
    struct epoll_event event = {
        .events = EPOLLET | (channel == CHANNEL_IN ? EPOLLOUT : EPOLLIN),
        .data.u64 = event_tag(EVENT_STREAM + channel, index),
    };

    stream->fd[channel] = fd;
    if (fcntl(fd, F_SETFL, O_NONBLOCK) < 0)
        return -1;
    return epoll_ctl(watcher, EPOLL_CTL_ADD, fd, &event);
}

/* The child's ends go to `theirs`, ours are watched. 0 or -1 with errno; all ends are then in
   `stream` or `theirs` for the caller to close. They are the user's, who may open them by name
   (/dev/stdout). */
static int connect_pipes(struct stream *stream, int theirs[CHANNELS], const struct launch *launch)
{
    for (unsigned channel = 0; channel < CHANNELS; channel++) {
        int ends[2];
        bool input = channel == CHANNEL_IN;

        if (launch->merged && channel == CHANNEL_ERR) {
            theirs[channel] = fcntl(theirs[CHANNEL_OUT], F_DUPFD_CLOEXEC, 3);
            return theirs[channel] < 0 ? -1 : 0;
        }
        if (pipe2(ends, O_CLOEXEC) < 0)
            return -1;
        theirs[channel] = ends[input ? 0 : 1];
        if (watch(stream, channel, ends[input ? 1 : 0]) < 0 ||
            fchown(theirs[channel], launch->uid, launch->gid) < 0)
            return -1;
    }
    return 0;
}

static int connect_terminal(struct stream *stream, int theirs[CHANNELS])
{
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);

    if (master < 0)
        return -1;
    stream->terminal = true;
    stream->fd[CHANNEL_OUT] = master;
    if (grantpt(master) < 0 || unlockpt(master) < 0)
        return -1;
    theirs[0] = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (theirs[0] < 0 || watch(stream, CHANNEL_OUT, master) < 0)
        return -1;
    int second = fcntl(master, F_DUPFD_CLOEXEC, 3);
    return second < 0 ? -1 : watch(stream, CHANNEL_IN, second);
}

/* By a process that is there already; false: there is none, or no longer. If it cannot be, it ends
   for want of anybody at the other ends of its pipes. */
static bool start_prepared(struct stream *stream, const struct launch *launch,
                           const uint8_t *payload, size_t length)
{
    struct prepared prepared;

    if (!launch->held || launch->terminal || launch->builtin ||
        !prepared_take(&prepared, payload, length))
        return false;
    stream->pid = prepared.pid;
    stream->status = prepared.status;
    stream->go = prepared.go;
    memcpy(stream->fd, prepared.fd, sizeof stream->fd);
    if (launch->merged)
        stream_close(stream, CHANNEL_ERR);
    bool connected = true;
    for (unsigned channel = 0; channel < CHANNELS && connected; channel++) {
        int fd = stream->fd[channel];

        connected = fd < 0 || (watch(stream, channel, fd) == 0 &&
                               fchown(fd, launch->uid, launch->gid) == 0);
    }
    if (connected && write(stream->go, "", 1) == 1)
        return true;
    close_ends(stream);
    return false;
}

static int start(struct stream *stream, const struct launch *launch)
{
    int theirs[CHANNELS] = {-1, -1, -1};
    int status[2] = {-1, -1}, go[2] = {-1, -1};
    int error = 0;

    if ((launch->terminal ? connect_terminal(stream, theirs)
                          : connect_pipes(stream, theirs, launch)) < 0 ||
        pipe2(status, O_CLOEXEC | O_NONBLOCK) < 0 || (launch->held && pipe2(go, O_CLOEXEC) < 0))
        error = errno;
    stream->status = status[0];
    stream->go = go[1];
    if (error == 0) {
        stream->pid = fork();
        if (stream->pid == 0) {
            if (go[1] >= 0)
                close(go[1]);
            launch_child(launch, theirs, status[1], go[0]);
        }
        if (stream->pid < 0)
            error = errno;
    }
    if (status[1] >= 0)
        close(status[1]);
    if (go[0] >= 0)
        close(go[0]);
    for (unsigned channel = 0; channel < CHANNELS; channel++) {
        if (theirs[channel] >= 0)
            close(theirs[channel]);
    }
    return error;
}

bool stream_execute(struct session *session, uint32_t id, const uint8_t *payload, size_t length)
{
    struct launch launch;
    struct stream *stream = streams;
    int error = launch_parse(&launch, payload, length);

    if (error == EBADMSG)
        return false;
    while (stream < streams + STREAM_LIMIT && stream->used)
        stream++;
    if (error == 0 && stream == streams + STREAM_LIMIT) {
        stream_refuse(session, id, EAGAIN, "too many commands are running in this machine");
    } else if (error != 0) {
        stream_refuse(session, id, error, "the machine has no memory left for the command");
    } else {
        unsigned long starved = memory_begin();
        *stream = (struct stream){.used = true,
                                  .starved = starved,
                                  .session = session,
                                  .id = id,
                                  .fd = {-1, -1, -1},
                                  .credit = {CREDIT_START, CREDIT_START, CREDIT_START},
                                  .status = -1,
                                  .go = -1};
        stream->ring = take_ring();
        if (stream->ring == NULL)
            error = errno;
        if (error == 0 && !start_prepared(stream, &launch, payload, length))
            error = start(stream, &launch);
        if (error != 0) {
            char text[TEXT_LIMIT];

            snprintf(text, sizeof text, "the machine could not start a process: %s",
                     strerror(error));
            stream_free(stream);
            stream_refuse(session, id, error, text);
        }
    }
    launch_free(&launch);
    return true;
}

void stream_go(struct stream *stream)
{
    if (stream->go < 0)
        return;
    ssize_t written = write(stream->go, "", 1);
    (void)written; /* there is room; and whoever is gone does not begin */
    forget_go(stream);
}

/* A child that was only just forked has no group of its own yet. */
static void signal_group(pid_t pid, int number)
{
    if (kill(-pid, number) < 0 && errno == ESRCH)
        kill(pid, number);
}

void stream_signal(struct stream *stream, uint32_t number, bool alone)
{
    if (stream->dead || number == 0 || number >= NSIG)
        return;
    if (alone)
        kill(stream->pid, (int)number);
    else
        signal_group(stream->pid, (int)number);
}

void stream_resize(struct stream *stream, uint16_t rows, uint16_t columns)
{
    struct winsize size = {.ws_row = rows, .ws_col = columns};

    if (stream->terminal && stream->fd[CHANNEL_OUT] >= 0)
        ioctl(stream->fd[CHANNEL_OUT], TIOCSWINSZ, &size);
}

bool streams_any(void)
{
    for (struct stream *stream = streams; stream < streams + STREAM_LIMIT; stream++) {
        if (stream->used)
            return true;
    }
    return false;
}

bool streams_pump(struct session *session)
{
    bool moved = false;

    turn++;
    for (unsigned i = 0; i < STREAM_LIMIT; i++) {
        struct stream *stream = &streams[(turn + i) % STREAM_LIMIT];

        if (!stream->used || stream->session != session)
            continue;
        moved |= stream_pump(stream);
    }
    return moved;
}

void streams_end(struct session *session)
{
    for (struct stream *stream = streams; stream < streams + STREAM_LIMIT; stream++) {
        if (!stream->used || stream->session != session)
            continue;
        stream->session = NULL;
        if (stream->dead) {
            stream_free(stream);
            continue;
        }
        for (unsigned channel = 0; channel < CHANNELS; channel++)
            stream_close(stream, channel);
        forget_go(stream);
        signal_group(stream->pid, SIGHUP);
        stream->kill_at = now_ms() + ENDING_GRACE_MS;
    }
}

/* The pipes may be held open for ever by what the command left behind, so what counts as its
   output is what is in them now. A terminal cannot tell; it is read until it is empty. */
static void note_death(struct stream *stream, int wait_status)
{
    stream->dead = true;
    stream->wait_status = wait_status;
    stream_stop_input(stream);
    for (unsigned channel = CHANNEL_OUT; channel < CHANNELS; channel++) {
        int waiting = 0;

        stream->ready[channel] = true;
        if (stream->terminal)
            stream->drain[channel] = TERMINAL_DRAIN;
        else if (stream->fd[channel] >= 0 && ioctl(stream->fd[channel], FIONREAD, &waiting) == 0)
            stream->drain[channel] = (size_t)waiting;
    }
}

void streams_reap(void)
{
    for (;;) {
        siginfo_t ended = {.si_pid = 0};
        int wait_status;

        /* Looked at before it is collected: while it is a zombie its number, which is also that
           of its group, cannot be given to anybody else. */
        if (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) < 0 || ended.si_pid == 0)
            return;
        struct stream *stream = streams;
        while (stream < streams + STREAM_LIMIT &&
               !(stream->used && !stream->dead && stream->pid == ended.si_pid))
            stream++;
        bool ours = stream < streams + STREAM_LIMIT;
        if (ours && stream->session == NULL)
            kill(-ended.si_pid, SIGKILL);
        if (waitpid(ended.si_pid, &wait_status, 0) < 0)
            return;
        if (ours && stream->session == NULL) {
            stream_free(stream);
        } else if (ours) {
            note_death(stream, wait_status);
        } else {
            memory_reaped(ended.si_pid);
            prepared_reaped(ended.si_pid);
            mounts_reaped(ended.si_pid, wait_status);
        }
    }
}

int streams_deadline(void)
{
    uint64_t now = now_ms();
    int soonest = -1;

    for (struct stream *stream = streams; stream < streams + STREAM_LIMIT; stream++) {
        if (!stream->used || stream->kill_at == 0)
            continue;
        if (stream->kill_at <= now) {
            signal_group(stream->pid, SIGKILL);
            stream->kill_at = 0;
        } else if (soonest < 0 || (int)(stream->kill_at - now) < soonest) {
            soonest = (int)(stream->kill_at - now);
        }
    }
    return soonest;
}

void stream_event(uint32_t index, unsigned channel, bool broken)
{
    struct stream *stream = &streams[index % STREAM_LIMIT];

    if (!stream->used || channel >= CHANNELS)
        return;
    stream->ready[channel] = true;
    if (channel == CHANNEL_IN && broken && !stream->terminal && stream->fd[CHANNEL_IN] >= 0) {
        /* nobody reads it any more: tell the host now, not after a gigabyte */
        stream_stop_input(stream);
        stream->end_due[CHANNEL_IN] = true;
    }
}
