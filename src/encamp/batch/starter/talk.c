/* What is said at the door once it is open: first with the agent, then with whoever carries the
   job, over the same connection. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "starter.h"

enum { HEAD = 5, ANSWER_LIMIT = 64 << 10, SILENCE_MS = 300000, AGAIN_MOST_MS = 600000 };
enum { SETTLING_MS = 1000 }; /* in which a job has set its traps, as it would have long ago */

struct talk {
    int door;
    const struct request *request;
    size_t sent;
    size_t received;
    bool accepted; /* somebody has answered */
    bool running;  /* the job has begun, in this talk */
    uint64_t since; /* and when */
    bool lost;
    bool *begun;
    int files[CALL_FILES]; /* they came with the last frame */
    bool has_files;
    uint8_t bytes[HEAD + ANSWER_LIMIT];
};

static uint32_t get_u32(const uint8_t *from)
{
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 |
           (uint32_t)from[3] << 24;
}

/* With the first byte travel the job's own input and outputs. */
static ssize_t send_some(struct talk *talk)
{
    struct iovec rest = {talk->request->bytes + talk->sent, talk->request->length - talk->sent};
    union {
        char space[CMSG_SPACE(3 * sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct msghdr message = {.msg_iov = &rest, .msg_iovlen = 1};

    if (talk->sent == 0) {
        const int streams[3] = {0, 1, 2};

        memset(&control, 0, sizeof control);
        message.msg_control = control.space;
        message.msg_controllen = sizeof control.space;
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof streams);
        memcpy(CMSG_DATA(head), streams, sizeof streams);
    }
    return sendmsg(talk->door, &message, MSG_NOSIGNAL);
}

/* What cannot be sent may still have been answered: a failure ends only the sending. */
static void send_request(struct talk *talk)
{
    while (talk->sent < talk->request->length) {
        ssize_t count = send_some(talk);

        if (count < 0 && errno == EAGAIN)
            return;
        talk->sent = count < 0 ? talk->request->length : talk->sent + (size_t)count;
    }
}

static void send_signals(struct talk *talk)
{
    bool alone;
    int number;

    while (talk->running && (number = signals_owed(&alone)) != 0) {
        const uint8_t frame[HEAD + 2] = {alone ? 2 : 1, 0, 0, 0, 'S', (uint8_t)number, 1};

        if (send(talk->door, frame, alone ? HEAD + 2 : HEAD + 1, MSG_NOSIGNAL) < 0 &&
            errno == EAGAIN)
            return;
        signals_sent(number, alone);
    }
}

static bool send_end(const struct talk *talk, const uint8_t end[CALL_END])
{
    uint8_t frame[HEAD + CALL_END] = {CALL_END, 0, 0, 0, 'X'};

    memcpy(frame + HEAD, end, CALL_END);
    return send(talk->door, frame, sizeof frame, MSG_NOSIGNAL) >= 0 || errno != EAGAIN;
}

static void send_ends(struct talk *talk)
{
    uint8_t end[CALL_END];

    calls_reap();
    while (calls_owed(end) && send_end(talk, end))
        calls_told();
}

static bool all_is_sent(const struct talk *talk)
{
    uint8_t end[CALL_END];
    bool alone;

    return talk->sent == talk->request->length && !calls_owed(end) &&
           (!talk->running || signals_owed(&alone) == 0);
}

/* From here on the job's input and output are in other hands: ours would keep them open. */
static void let_streams_go(void)
{
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);

    if (nothing >= 0) {
        dup2(nothing, 0);
        dup2(nothing, 1);
        close(nothing);
    }
}

/* What came before there was a witness is taken for one to all, if it ends the job. */
static void begin(struct talk *talk)
{
    int number;

    talk->since = now_ms();
    let_streams_go();
    witness_start();
    while ((number = signals_next()) != 0) {
        if (signals_deadly(number))
            signals_owe(number, false);
        else
            signals_keep(number);
    }
}

/* How long it is until signals that were kept are the job's; -1: there are none. */
static int until_settled(const struct talk *talk)
{
    uint64_t gone = now_ms() - talk->since;

    if (!talk->running || !signals_kept())
        return -1;
    return gone < SETTLING_MS ? (int)(SETTLING_MS - gone) : 0;
}

static int sooner(int one, int other)
{
    return one < 0 || (other >= 0 && other < one) ? other : one;
}

static void close_files(struct talk *talk)
{
    for (int i = 0; talk->has_files && i < CALL_FILES; i++)
        close(talk->files[i]);
    talk->has_files = false;
}

static void begin_call(struct talk *talk, const uint8_t *body)
{
    uint8_t end[CALL_END] = {body[0], body[1], body[2], body[3], CALL_NOT_BEGUN, EAGAIN};

    if (!talk->running || !talk->has_files || !calls_begin(get_u32(body), talk->files))
        send_end(talk, end);
    close_files(talk);
}

/* Grid Engine ends a job for good of which it sees a task die of a signal. */
static _Noreturn void end_like_the_job(unsigned kind, int value, bool part)
{
    calls_end();
    witness_end();
    guard_end();
    if (kind == 1 && value > 0 && value <= 64 && part)
        _exit(128 + value);
    if (kind == 1 && value > 0 && value <= 64)
        die_of(value);
    _exit(kind == 0 ? value : FAILED_LATER);
}

/* True if that was the last word. */
static bool take(struct talk *talk, uint8_t kind, const uint8_t *body, size_t length,
                 struct answer *answer)
{
    talk->accepted = true;
    switch (kind) {
    case 'B':
        talk->running = *talk->begun = true;
        begin(talk);
        return false;
    case 'D':
        guard_tell_ended();
        return false;
    case 'E':
        if (length >= 2)
            end_like_the_job(body[0], body[1], talk->request->part);
        break;
    case 'G':
        if (length >= 2) {
            calls_end();
            if (length > 2)
                say_bytes(body + 2, length - 2);
            leave_given_back(body[0], body[1] == 1);
        }
        break;
    case 'F':
        if (length >= 1) {
            calls_end();
            say_bytes(body + 1, length - 1);
            _exit(body[0] == 0 ? 1 : body[0]); /* a failure is never a success */
        }
        break;
    case 'P':
        answer->kind = PLAIN;
        return !*talk->begun;
    case 'T':
    case 'W':
    case 'M':
        if (length < 4)
            break;
        answer->kind = AGAIN;
        answer->why = kind == 'T' ? TRIED : kind == 'W' ? CROWDED : MISTAKEN;
        answer->milliseconds = get_u32(body);
        if (answer->milliseconds > AGAIN_MOST_MS)
            answer->milliseconds = AGAIN_MOST_MS;
        if (length > 4)
            say_news(body + 4, length - 4);
        return !talk->running;
    case 'N':
        say_once(body, length);
        return false;
    case 'C':
        if (length >= 4)
            begin_call(talk, body);
        return false;
    case 'K':
        if (length >= 5)
            calls_signal(get_u32(body), body[4]);
        return false;
    default:
        return false; /* 'A', and what later versions may say */
    }
    talk->lost = true;
    return false;
}

/* Files belong to the last frame of what comes with them: the kernel gives nothing beyond it. */
static ssize_t hear(struct talk *talk)
{
    struct iovec room = {talk->bytes + talk->received, sizeof talk->bytes - talk->received};
    union {
        char space[CMSG_SPACE(CALL_FILES * sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct msghdr message = {.msg_iov = &room,
                             .msg_iovlen = 1,
                             .msg_control = control.space,
                             .msg_controllen = sizeof control.space};
    ssize_t count = recvmsg(talk->door, &message, MSG_CMSG_CLOEXEC);
    struct cmsghdr *head = count < 0 ? NULL : CMSG_FIRSTHDR(&message);

    if (head == NULL || head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
        return count;
    size_t files = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    close_files(talk);
    memcpy(talk->files, CMSG_DATA(head), files * sizeof(int));
    talk->has_files = files == CALL_FILES;
    for (size_t i = 0; !talk->has_files && i < files; i++)
        close(talk->files[i]);
    return count;
}

static bool receive(struct talk *talk, struct answer *answer)
{
    ssize_t count = hear(talk);

    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR))
        talk->lost = true;
    if (count <= 0)
        return false;
    talk->received += (size_t)count;
    while (talk->received >= HEAD && !talk->lost) {
        size_t length = get_u32(talk->bytes);

        if (length > ANSWER_LIMIT)
            talk->lost = true;
        if (length > ANSWER_LIMIT || talk->received < HEAD + length)
            break;
        if (take(talk, talk->bytes[4], talk->bytes + HEAD, length, answer))
            return true;
        talk->received -= HEAD + length;
        memmove(talk->bytes, talk->bytes + HEAD + length, talk->received);
    }
    return false;
}

struct answer talk(int door, const struct request *request, bool *begun)
{
    static struct talk talk;
    struct answer answer = {.kind = LOST};
    uint64_t start = now_ms();

    talk = (struct talk){.door = door, .request = request, .begun = begun};
    while (!talk.lost) {
        int number;

        while ((number = signals_next()) != 0) {
            if (talk.running)
                witness_judge(number);
            else
                signals_keep(number);
        }
        witness_listen();
        if (until_settled(&talk) == 0)
            signals_release(request->early_alone);
        send_request(&talk);
        send_signals(&talk);
        send_ends(&talk);
        struct pollfd polled[4] = {
            {.fd = door, .events = (short)(POLLIN | (all_is_sent(&talk) ? 0 : POLLOUT))},
            {.fd = signals_descriptor(), .events = POLLIN},
            {.fd = witness_descriptor(), .events = POLLIN},
            {.fd = request->shepherd, .events = POLLIN}};
        int most = sooner(witness_deadline(), until_settled(&talk));
        poll(polled, 4, talk.accepted ? most : SILENCE_MS);
        if (polled[3].revents != 0)
            die_of(SIGKILL);
        if (polled[0].revents != 0 && receive(&talk, &answer))
            return answer;
        if (!talk.accepted && now_ms() - start > SILENCE_MS)
            return (struct answer){.kind = SILENT};
    }
    close_files(&talk);
    if (!*talk.begun || !calls_are_tasks())
        calls_end();
    return (struct answer){.kind = LOST};
}
