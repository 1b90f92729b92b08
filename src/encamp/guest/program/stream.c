#define _GNU_SOURCE
#include "stream.h"

#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "files.h"
#include "launch.h"
#include "memory.h"

enum { LEAST_READ = 4096 };

static void tell_exit(struct session *session, uint32_t id, enum exit_kind kind, uint32_t value,
                      const char *text)
{
    uint8_t *start = session_reserve(session, REPLY_ROOM - FRAME_HEADER);
    uint8_t *at = start;

    if (start == NULL)
        return; /* cannot be: every caller made sure of the room */
    at = field_put_u32(at, KEY_KIND, kind);
    at = field_put_u32(at, KEY_VALUE, value);
    at = field_put(at, KEY_TEXT, text, (uint32_t)strnlen(text, TEXT_LIMIT));
    session_commit(session, FRAME_EXIT, 0, id, (size_t)(at - start));
}

void stream_refuse(struct session *session, uint32_t id, int error, const char *text)
{
    tell_exit(session, id, EXIT_NOT_STARTED, (uint32_t)error, text);
}

void stream_stop_input(struct stream *stream)
{
    stream_close(stream, CHANNEL_IN);
    stream->passed += (uint32_t)stream->ring_count;
    stream->ring_count = 0;
}

/* What end-of-file is to a reader of a pipe, its end-of-file character is to one of a terminal. */
static void end_terminal_input(struct stream *stream)
{
    struct termios settings;
    uint8_t twice[2] = {4, 4};

    if (tcgetattr(stream->fd[CHANNEL_OUT] >= 0 ? stream->fd[CHANNEL_OUT] : stream->fd[CHANNEL_IN],
                  &settings) == 0)
        twice[0] = twice[1] = settings.c_cc[VEOF];
    ssize_t written = write(stream->fd[CHANNEL_IN], twice, stream->line_open ? 2 : 1);
    (void)written; /* full: then whoever reads it has more to read than it wants */
}

static bool pump_input(struct stream *stream)
{
    bool moved = false;

    while (stream->fd[CHANNEL_IN] >= 0 && stream->ready[CHANNEL_IN] && stream->ring_count > 0) {
        size_t straight = CREDIT_START - stream->ring_start;
        size_t count = stream->ring_count < straight ? stream->ring_count : straight;
        ssize_t written = write(stream->fd[CHANNEL_IN], stream->ring + stream->ring_start, count);

        if (written < 0 && errno == EAGAIN) {
            stream->ready[CHANNEL_IN] = false;
        } else if (written < 0 && errno != EINTR) {
            stream_stop_input(stream);
            stream->end_due[CHANNEL_IN] = true;
        } else if (written > 0) {
            moved = true;
            stream->line_open = stream->ring[stream->ring_start + (size_t)written - 1] != '\n';
            stream->passed += (uint32_t)written;
            stream->ring_count -= (size_t)written;
            stream->ring_start = (stream->ring_start + (size_t)written) % CREDIT_START;
            if (stream->ring_count == 0)
                stream->ring_start = 0; /* touch as few pages of the ring as will do */
        }
    }
    if (stream->input_ended && stream->ring_count == 0 && stream->fd[CHANNEL_IN] >= 0) {
        if (stream->terminal)
            end_terminal_input(stream);
        stream_close(stream, CHANNEL_IN);
    }
    return moved;
}

bool stream_input(struct stream *stream, const uint8_t *bytes, size_t count)
{
    if (count > stream->credit[CHANNEL_IN])
        return false;
    stream->credit[CHANNEL_IN] -= (uint32_t)count;
    if (stream->fd[CHANNEL_IN] < 0 || stream->input_ended) {
        stream->passed += (uint32_t)count;
        return true;
    }
    size_t at = (stream->ring_start + stream->ring_count) % CREDIT_START;
    size_t straight = CREDIT_START - at;
    size_t first = count < straight ? count : straight;
    memcpy(stream->ring + at, bytes, first);
    memcpy(stream->ring, bytes + first, count - first);
    stream->ring_count += count;
    pump_input(stream);
    return true;
}

void stream_input_end(struct stream *stream)
{
    stream->input_ended = true;
    pump_input(stream);
}

bool stream_credit(struct stream *stream, unsigned channel, uint32_t more)
{
    if (channel == CHANNEL_IN || more > UINT32_MAX - stream->credit[channel])
        return false;
    stream->credit[channel] += more;
    return true;
}

/* Read once, straight into the session's output. */
static bool pump_output(struct stream *stream, unsigned channel)
{
    size_t count = FRAME_LIMIT;
    size_t room = session_room(stream->session);

    if (stream->fd[channel] < 0 || !stream->ready[channel] || stream->credit[channel] == 0 ||
        (stream->dead && stream->drain[channel] == 0) ||
        room < REPLY_ROOM + FRAME_HEADER + LEAST_READ)
        return false;
    if (count > room - REPLY_ROOM - FRAME_HEADER)
        count = room - REPLY_ROOM - FRAME_HEADER;
    if (count > stream->credit[channel])
        count = stream->credit[channel];
    if (stream->dead && count > stream->drain[channel])
        count = stream->drain[channel];
    ssize_t taken = read(stream->fd[channel], session_reserve(stream->session, count), count);
    if (taken > 0) {
        session_commit(stream->session, FRAME_DATA, (uint8_t)channel, stream->id, (size_t)taken);
        stream->credit[channel] -= (uint32_t)taken;
        if (stream->dead)
            stream->drain[channel] -= (size_t)taken;
        return true;
    }
    if (taken < 0 && errno == EINTR)
        return true;
    /* A terminal whose last user closed it is kept as long as the command lives: it would be hung
       up otherwise, which kills a command that closes its files before it exits. */
    if (taken < 0 && (errno == EAGAIN || (stream->terminal && !stream->dead))) {
        stream->ready[channel] = false;
        stream->drain[channel] = 0;
        return false;
    }
    stream_close(stream, channel);
    stream->end_due[channel] = true;
    return true;
}

/* Answers that wait for room: grants, ends of channels and at last the end of the command. */
static bool pump_answers(struct stream *stream)
{
    struct session *session = stream->session;

    if (stream->passed >= CREDIT_BATCH && session_room(session) >= REPLY_ROOM) {
        put_u32(session_reserve(session, 4), stream->passed);
        session_commit(session, FRAME_CREDIT, CHANNEL_IN, stream->id, 4);
        stream->credit[CHANNEL_IN] += stream->passed;
        stream->passed = 0;
    }
    for (unsigned channel = 0; channel < CHANNELS; channel++) {
        if (stream->end_due[channel] && session_room(session) >= REPLY_ROOM) {
            session_commit(session, FRAME_END, (uint8_t)channel, stream->id, 0);
            stream->end_due[channel] = false;
        }
    }
    for (unsigned channel = CHANNEL_OUT; channel < CHANNELS; channel++) {
        if (stream->fd[channel] >= 0 && stream->drain[channel] > 0)
            return false;
    }
    if (!stream->dead || session_room(session) < REPLY_ROOM)
        return false;

    struct launch_failure failure;
    char text[TEXT_LIMIT] = "";
    if (read(stream->status, &failure, sizeof failure) == (ssize_t)sizeof failure) {
        launch_sentence(&failure, text, sizeof text);
        tell_exit(session, stream->id,
                  failure.step == STEP_FURNISH ? EXIT_NOT_FURNISHED : EXIT_NOT_STARTED,
                  (uint32_t)failure.error, text);
    } else {
        int status = stream->wait_status;
        bool killed = WIFSIGNALED(status);

        if (status == 0)
            memory_ended_well();
        else
            memory_tell(stream->starved, text, sizeof text);
        if (status != 0 && *text == 0)
            disk_tell(text, sizeof text);
        tell_exit(session, stream->id, killed ? EXIT_KILLED : EXIT_EXITED,
                  (uint32_t)(killed ? WTERMSIG(status) : WEXITSTATUS(status)), text);
    }
    stream_free(stream);
    return true;
}

bool stream_pump(struct stream *stream)
{
    bool moved = pump_input(stream);

    moved |= pump_output(stream, CHANNEL_OUT);
    moved |= pump_output(stream, CHANNEL_ERR);
    return pump_answers(stream) || moved;
}
