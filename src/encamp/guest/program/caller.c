/* What processes of a machine call in place of a command that only the host has: it is begun there,
   with these arguments and variables, reads and prints through this process, gets the signals that
   this one gets, and this one ends as it does. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "calls.h"
#include "offers.h"
#include "stream.h"

extern char **environ;

enum { UNWRITTEN = 74, LATER = 75, NOT_RUN = 126, NOT_FOUND = 127 };
enum { WRITE_MOST = 4096 /* what no pipe blocks over */ };

static const int passed_on[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT};

struct output {
    uint8_t bytes[CALL_CREDIT];
    size_t count;
    uint32_t taken; /* and not granted anew yet */
};

static const char *name;
static int line;
static struct output outputs[2];
static uint8_t frame[FRAME_HEADER + FRAME_LIMIT];
static size_t received;
static uint32_t credit; /* what may be sent of our input; none before the host says so */
static bool input_over;
static bool ended;
static int lost; /* why some of the output could not be written, or 0 */
static uint32_t kind, value;

static _Noreturn void give_up(int code, const char *sentence)
{
    fprintf(stderr, "encamp: %s: %s.\n", name, sentence);
    exit(code);
}

static void say(uint8_t type, uint8_t channel, const void *payload, size_t length)
{
    uint8_t header[FRAME_HEADER];
    const uint8_t *at = header;
    size_t left = sizeof header;

    frame_header(header, type, channel, 0, (uint32_t)length);
    for (int part = 0; part < 2; part++) {
        while (left > 0) {
            ssize_t count = send(line, at, left, MSG_NOSIGNAL);

            if (count < 0 && errno == EINTR)
                continue;
            if (count < 0)
                return; /* what is still to be read says why */
            at += count;
            left -= (size_t)count;
        }
        at = payload;
        left = length;
    }
}

/* A stream that is closed would be the line: what is printed would go to the host. */
static void have_streams(void)
{
    for (int fd = 0; fd < 3; fd++) {
        if (fcntl(fd, F_GETFD) < 0)
            open("/dev/null", O_RDWR); /* the lowest number that is free */
    }
}

/* ── asking ───────────────────────────────────────────────────────────────────────────────────── */

static void connect_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    if (strlen(path) >= sizeof address.sun_path)
        give_up(LATER, strerror(ENAMETOOLONG));
    strcpy(address.sun_path, path);
    line = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (line < 0 || connect(line, (struct sockaddr *)&address, sizeof address) < 0)
        give_up(LATER, errno == ECONNREFUSED || errno == ENOENT
                           ? "the job that could call it here has ended"
                           : strerror(errno));
}

static size_t size_of(char *const *words)
{
    size_t size = 0;

    for (; *words != NULL; words++)
        size += FIELD_HEADER + strlen(*words);
    return size;
}

static uint8_t *put_all(uint8_t *at, uint16_t key, char *const *words)
{
    for (; *words != NULL; words++)
        at = field_put(at, key, *words, (uint32_t)strlen(*words));
    return at;
}

static void ask(char **argv)
{
    char directory[PATH_MAX] = "/";

    if (getcwd(directory, sizeof directory) == NULL)
        strcpy(directory, "/");
    size_t size = size_of(argv) + size_of(environ) + strlen(name) + strlen(directory) + 64;
    uint8_t *all = malloc(size);
    if (all == NULL)
        give_up(NOT_RUN, strerror(ENOMEM));
    uint8_t *at = field_put(all, KEY_ARG, name, (uint32_t)strlen(name));
    if (argv[0] != NULL)
        at = put_all(at, KEY_ARG, argv + 1);
    at = put_all(at, KEY_ENV, environ);
    at = field_put(at, KEY_CWD, directory, (uint32_t)strlen(directory));
    size_t left = (size_t)(at - all);
    for (at = all; left > CALL_PIECE; at += CALL_PIECE, left -= CALL_PIECE)
        say(FRAME_CALL, 1, at, CALL_PIECE);
    say(FRAME_CALL, 0, at, left);
    free(all);
}

/* ── while it runs ────────────────────────────────────────────────────────────────────────────── */

/* One that is ignored here was to be ignored by the command. */
static int take_signals(void)
{
    sigset_t taken;

    sigemptyset(&taken);
    for (size_t i = 0; i < sizeof passed_on / sizeof *passed_on; i++) {
        struct sigaction action;

        if (sigaction(passed_on[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(&taken, passed_on[i]);
    }
    sigprocmask(SIG_BLOCK, &taken, NULL);
    return signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void pass_signals(int signals)
{
    struct signalfd_siginfo info;
    uint8_t number[4];

    while (read(signals, &info, sizeof info) == sizeof info) {
        put_u32(number, info.ssi_signo);
        say(FRAME_SIGNAL, 0, number, sizeof number);
    }
}

static void grant(unsigned which)
{
    uint8_t more[4];

    if (outputs[which].taken < CALL_CREDIT / 4)
        return;
    put_u32(more, outputs[which].taken);
    outputs[which].taken = 0;
    say(FRAME_CREDIT, (uint8_t)(CHANNEL_OUT + which), more, sizeof more);
}

static void print(unsigned which)
{
    struct output *output = &outputs[which];
    size_t most = output->count < WRITE_MOST ? output->count : WRITE_MOST;
    ssize_t count = write(CHANNEL_OUT + (int)which, output->bytes, most);

    if (count < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (count < 0 && errno == EPIPE)
        exit(1); /* whoever ignores that signal knows why */
    if (count < 0) { /* closed, or the disk is full: the command cannot be told */
        lost = errno;
        count = (ssize_t)output->count;
    }
    output->count -= (size_t)count;
    memmove(output->bytes, output->bytes + count, output->count);
    output->taken += (uint32_t)count;
    grant(which);
}

static void read_input(void)
{
    uint8_t bytes[CALL_PIECE];
    size_t most = credit - FRAME_HEADER < sizeof bytes ? credit - FRAME_HEADER : sizeof bytes;
    ssize_t count = read(0, bytes, most);

    if (count < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (count > 0) {
        credit -= (uint32_t)count + FRAME_HEADER;
        say(FRAME_DATA, CHANNEL_IN, bytes, (size_t)count);
    } else {
        input_over = true;
        say(FRAME_END, CHANNEL_IN, NULL, 0);
    }
}

static void take_end(const uint8_t *payload, size_t length)
{
    char text[TEXT_LIMIT + 1] = "";

    ended = field_u32(payload, length, KEY_KIND, &kind) &&
            field_u32(payload, length, KEY_VALUE, &value);
    field_text(payload, length, KEY_TEXT, text, sizeof text);
    if (!ended)
        give_up(LATER, "the host did not say how it ended");
    if (kind != EXIT_EXITED && kind != EXIT_KILLED)
        give_up(value == ENOENT ? NOT_FOUND : value == EAGAIN ? LATER : NOT_RUN,
                *text != 0 ? text : strerror((int)value));
}

static void act_on(uint8_t type, uint8_t channel, const uint8_t *payload, size_t length)
{
    struct output *output = &outputs[channel == CHANNEL_ERR];

    switch (type) {
    case FRAME_DATA:
        if (channel == CHANNEL_IN || length > CALL_CREDIT - output->count)
            give_up(LATER, "the host said what makes no sense");
        memcpy(output->bytes + output->count, payload, length);
        output->count += length;
        output->taken += FRAME_HEADER;
        return;
    case FRAME_CREDIT:
        if (length == 4 && channel == CHANNEL_IN)
            credit += get_u32(payload);
        return;
    case FRAME_END:
        input_over = input_over || channel == CHANNEL_IN;
        return;
    case FRAME_EXIT:
        take_end(payload, length);
        return;
    default:
        return;
    }
}

static void listen_to_host(void)
{
    ssize_t count = recv(line, frame + received, sizeof frame - received, 0);

    if (count < 0 && errno == EINTR)
        return;
    if (count <= 0)
        give_up(LATER, "the connection with the host was lost");
    received += (size_t)count;
    while (received >= FRAME_HEADER && !ended) {
        size_t length = get_u32(frame + 8);

        if (length > FRAME_LIMIT)
            give_up(LATER, "the host said what makes no sense");
        if (received < FRAME_HEADER + length)
            return;
        act_on(frame[1], frame[2], frame + FRAME_HEADER, length);
        received -= FRAME_HEADER + length;
        memmove(frame, frame + FRAME_HEADER + length, received);
    }
}

static _Noreturn void end_like_it(void)
{
    struct rlimit none = {0, 0};
    sigset_t only;

    if (kind == EXIT_EXITED && value == 0 && lost != 0)
        give_up(UNWRITTEN, strerror(lost));
    if (kind == EXIT_EXITED)
        exit((int)value);
    setrlimit(RLIMIT_CORE, &none);
    signal((int)value, SIG_DFL);
    sigemptyset(&only);
    sigaddset(&only, (int)value);
    raise((int)value);
    sigprocmask(SIG_UNBLOCK, &only, NULL);
    exit(128 + (int)value);
}

static _Noreturn void attend(void)
{
    int signals = take_signals();

    while (!ended || outputs[0].count > 0 || outputs[1].count > 0) {
        bool reading = !ended && !input_over && credit > FRAME_HEADER;
        struct pollfd polled[] = {
            {.fd = reading ? 0 : -1, .events = POLLIN},
            {.fd = outputs[0].count > 0 ? 1 : -1, .events = POLLOUT},
            {.fd = outputs[1].count > 0 ? 2 : -1, .events = POLLOUT},
            {.fd = ended ? -1 : line, .events = POLLIN},
            {.fd = signals, .events = POLLIN},
        };

        if (poll(polled, sizeof polled / sizeof *polled, -1) < 0)
            continue;
        if (polled[4].revents != 0)
            pass_signals(signals);
        if (polled[3].revents != 0)
            listen_to_host();
        if (polled[0].revents != 0 && !ended)
            read_input();
        for (unsigned which = 0; which < 2; which++) {
            if (polled[1 + which].revents != 0)
                print(which);
        }
    }
    end_like_it();
}

void caller_main(char **argv)
{
    const char *begun_as = (const char *)getauxval(AT_EXECFN);
    const char *slash = begun_as == NULL ? NULL : strrchr(begun_as, '/');
    char path[PATH_MAX];
    struct stat found;

    if (slash == NULL || lstat(begun_as, &found) < 0 || !S_ISLNK(found.st_mode) ||
        readlink(begun_as, path, sizeof path) != sizeof OFFERS_PROGRAM - 1 ||
        memcmp(path, OFFERS_PROGRAM, sizeof OFFERS_PROGRAM - 1) != 0)
        return;
    name = slash + 1;
    have_streams();
    snprintf(path, sizeof path, "%.*s/%s", (int)(slash - begun_as), begun_as, OFFERS_SOCKET);
    connect_to(path);
    ask(argv);
    attend();
}
