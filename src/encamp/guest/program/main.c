#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "boot.h"
#include "builtins.h"
#include "calls.h"
#include "console.h"
#include "events.h"
#include "memory.h"
#include "offers.h"
#include "ports.h"
#include "prepared.h"
#include "session.h"
#include "stream.h"

static struct session sessions[SESSION_LIMIT];
static size_t session_count;

static void watch(int epoll, int fd, uint32_t events, uint64_t tag)
{
    struct epoll_event event = {.events = events, .data.u64 = tag};

    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0)
        fatal("a descriptor cannot be watched: %s", strerror(errno));
}

static int watch_children(int epoll)
{
    sigset_t child;

    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    int fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0)
        fatal("signals cannot be received: %s", strerror(errno));
    watch(epoll, fd, EPOLLIN, event_tag(EVENT_CHILD, 0));
    return fd;
}

/* All of them before anything is done about any, so that none can concern a successor. */
static bool note_events(const struct epoll_event *events, int count)
{
    bool child = false;

    for (int i = 0; i < count; i++) {
        unsigned kind = (unsigned)(events[i].data.u64 >> 32);
        uint32_t index = (uint32_t)events[i].data.u64;

        if (kind == EVENT_CHILD) {
            child = true;
        } else if (kind == EVENT_SESSION) {
            sessions[index].readable = true;
            sessions[index].writable = true;
        } else if (kind == EVENT_LISTENER) {
            calls_knock();
        } else if (kind == EVENT_CALLER) {
            calls_event(index);
        } else {
            stream_event(index, kind - EVENT_STREAM, events[i].events & EPOLLERR);
        }
    }
    return child;
}

static bool anybody_there(void)
{
    for (size_t i = 0; i < session_count; i++) {
        if (sessions[i].fd >= 0 && sessions[i].greeted)
            return true;
    }
    return streams_any();
}

static int sooner(int one, int other)
{
    return one >= 0 && (other < 0 || one < other) ? one : other;
}

static int time_limit(bool busy)
{
    int limit = sooner(streams_deadline(), memory_deadline());

    for (size_t i = 0; i < session_count; i++)
        limit = sooner(session_deadline(&sessions[i]), limit);
    return busy ? 0 : limit;
}

static void loop(int epoll, int child)
{
    struct epoll_event events[64];
    bool busy = true;

    for (;;) {
        int count = epoll_wait(epoll, events, 64, time_limit(busy));

        if (count < 0 && errno != EINTR)
            fatal("waiting for events failed: %s", strerror(errno));
        if (note_events(events, count)) {
            struct signalfd_siginfo ignored[16];

            while (read(child, ignored, sizeof ignored) > 0)
                ;
            streams_reap();
        }
        memory_look();
        busy = false;
        for (size_t i = 0; i < session_count; i++) {
            if (sessions[i].fd >= 0)
                busy |= session_pump(&sessions[i]);
            if (sessions[i].closed && !streams_any())
                exit(0);
        }
        /* when nobody waits for it, as the first command of a clone would */
        if (!busy && !streams_any())
            memory_settle();
        if (!busy && !anybody_there())
            prepared_make();
    }
}

/* Nothing may open as 0, 1 or 2 by chance: children get those. */
static void fill_standard(void)
{
    int fd;

    do
        fd = open(in_machine ? "/dev/console" : "/dev/null", O_RDWR | O_NOCTTY);
    while (fd >= 0 && fd < 3);
    if (fd >= 3)
        close(fd);
}

/* A machine that is overrun with processes must still be heard, and be switched off. As a batch
   process it takes the processor at the next tick and not at every write of a command: else
   output would come in as many pieces as it was written in. Children go back to normal. */
static void take_precedence(void)
{
    struct sched_param none = {.sched_priority = 0};

    setpriority(PRIO_PROCESS, 0, -20);
    /* the system call itself: musl's function of that name does nothing */
    syscall(SYS_sched_setscheduler, 0, SCHED_BATCH | SCHED_RESET_ON_FORK, &none);
}

/* When memory is short. The kernel spares a machine's first process by itself. */
static void spare_from_killing(void)
{
    if (getpid() == 1)
        return;
    int adjust = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

    if (adjust < 0 || write(adjust, "-1000", 5) < 0)
        say("the kernel may kill this program when memory is short");
    close(adjust);
}

static _Noreturn void serve(int given)
{
    int fds[SESSION_LIMIT] = {given};
    struct sigaction ignore = {.sa_handler = SIG_IGN};

    session_count = given >= 0 ? 1 : SESSION_LIMIT;
    fill_standard();
    sigaction(SIGPIPE, &ignore, NULL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (given < 0) {
        take_precedence();
        spare_from_killing();
        if (ports_open(fds, SESSION_LIMIT) == 0)
            fatal("the machine has no port named encamp.0");
    }
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0)
        fatal("events cannot be waited for: %s", strerror(errno));
    int child = watch_children(epoll);
    streams_start(epoll);
    calls_start(epoll);
    offers_start(epoll);
    if (in_machine) {
        offers_prepare(OFFERS_PLACE); /* if it cannot be done, whoever wants it is told */
        memory_start();
        prepared_make();
    }
    for (size_t i = 0; i < session_count; i++) {
        session_start(&sessions[i], fds[i], given >= 0);
        if (fds[i] >= 0)
            watch(epoll, fds[i], EPOLLIN | EPOLLOUT | EPOLLET,
                  event_tag(EVENT_SESSION, (uint32_t)i));
    }
    if (in_machine)
        say("ready");
    loop(epoll, child);
    abort();
}

static int socket_argument(const char *word)
{
    char *end;
    long fd = strtol(word, &end, 10);

    if (*word == 0 || *end != 0 || fd < 0 || fd > 1 << 20 ||
        fcntl((int)fd, F_SETFL, O_NONBLOCK) < 0 || fcntl((int)fd, F_SETFD, FD_CLOEXEC) < 0) {
        fprintf(stderr, "encamp-guest: '%s' is not an open descriptor\n", word);
        exit(64);
    }
    return (int)fd;
}

int main(int argc, char **argv)
{
    caller_main(argv);
    if (argc >= 2 && builtin_knows(argv[1]))
        return builtin_main(argc - 1, argv + 1);
    if (argc == 3 && strcmp(argv[1], "--socket") == 0) {
        in_machine = false;
        serve(socket_argument(argv[2]));
    }
    if (argc == 2 && strcmp(argv[1], "--service") == 0)
        serve(-1);
    if (getpid() == 1) {
        boot();
        serve(-1);
    }
    fprintf(stderr, "usage: encamp-guest --service | --socket FD | BUILTIN WORD...\n");
    return 64;
}
