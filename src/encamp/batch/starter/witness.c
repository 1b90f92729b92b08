/* Whom a signal was meant for. A child of ours, which is in every group of processes that we are
   in and does nothing else, tells which signals it gets: what both of us get was sent to all of
   the job, what only we get to its first process alone. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "starter.h"

enum {
    APART_MS = 250,   /* who sends to all takes no longer than that from one to the next */
    EARLY_MS = 1000,  /* what it got before us, we get within that */
    ANSWER_MS = 10000,
    WITNESSES_MOST = 8,
    WAITING_MOST = 64,
    NUMBERS = 65,
    ASK = 'a',
    ANSWER = 0, /* anything else that it says is the number of a signal */
};

struct waiting {
    int number;
    uint64_t since;
};

static pid_t witness = -1;
static int line = -1;
static unsigned witnesses;
static uint64_t asked_at; /* 0: it was not asked */
static struct waiting waiting[WAITING_MOST]; /* the oldest first */
static size_t count;
static uint64_t early[NUMBERS]; /* when it got what we did not get yet; 0: nothing */

/* ── the witness itself ───────────────────────────────────────────────────────────────────────── */

static void tell(int to, uint8_t what)
{
    if (send(to, &what, 1, MSG_NOSIGNAL) != 1)
        _exit(0);
}

static void tell_signals(int to, int signals, pid_t parent)
{
    struct signalfd_siginfo info;

    while (read(signals, &info, sizeof info) == sizeof info) {
        if (info.ssi_pid != (uint32_t)parent && info.ssi_signo < NUMBERS)
            tell(to, (uint8_t)info.ssi_signo);
    }
}

/* Nothing of the job's is held open here: what reads its output would wait for us. */
static _Noreturn void be_witness(int ours, pid_t parent)
{
    int to = dup2(ours, 0);

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, "encamp-witness");
    close_from(1);
    int signals = signals_open();
    while (to == 0 && signals >= 0 && getppid() == parent) {
        struct pollfd polled[2] = {{.fd = to, .events = POLLIN},
                                   {.fd = signals, .events = POLLIN}};
        uint8_t asked;

        poll(polled, 2, -1);
        if (polled[0].revents != 0 && recv(to, &asked, 1, 0) != 1)
            break;
        tell_signals(to, signals, parent);
        if (polled[0].revents != 0)
            tell(to, ANSWER);
    }
    _exit(0);
}

/* ── and who asks it ──────────────────────────────────────────────────────────────────────────── */

void witness_start(void)
{
    int ends[2];
    pid_t parent = getpid();

    if (witness > 0 || witnesses++ >= WITNESSES_MOST)
        return;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
        return;
    witness = fork();
    if (witness == 0)
        be_witness(ends[1], parent);
    close(ends[1]);
    line = ends[0];
    if (witness < 0)
        witness_end();
}

void witness_end(void)
{
    if (witness > 0) {
        kill(witness, SIGKILL);
        while (waitpid(witness, NULL, 0) < 0 && errno == EINTR)
            continue;
    }
    if (line >= 0)
        close(line);
    witness = line = -1;
    asked_at = 0;
    memset(early, 0, sizeof early);
    /* nobody knows: as if for all */
    for (size_t i = 0; i < count; i++)
        signals_owe(waiting[i].number, false);
    count = 0;
}

void witness_forget(void)
{
    witness = line = -1;
    witnesses = 0;
    asked_at = 0;
    count = 0;
    memset(early, 0, sizeof early);
}

int witness_descriptor(void)
{
    return line;
}

static void remove_waiting(size_t at)
{
    count--;
    memmove(waiting + at, waiting + at + 1, (count - at) * sizeof *waiting);
}

void witness_judge(int number)
{
    uint64_t now = now_ms();

    if (early[number] != 0 && now - early[number] <= EARLY_MS) {
        early[number] = 0;
        signals_owe(number, false);
    } else if (line < 0 || count == WAITING_MOST) {
        signals_owe(number, false);
    } else {
        waiting[count++] = (struct waiting){number, now};
    }
}

static void heard(int number)
{
    for (size_t at = count; at-- > 0;) {
        if (waiting[at].number == number) {
            remove_waiting(at);
            signals_owe(number, false);
            return;
        }
    }
    early[number] = now_ms();
}

/* It has told everything that it had got when it was asked. */
static void answered(void)
{
    while (count > 0 && waiting[0].since + APART_MS <= asked_at) {
        signals_owe(waiting[0].number, true);
        remove_waiting(0);
    }
    asked_at = 0;
}

/* One that was stopped together with us may not have gone on together with us. */
static void ask(void)
{
    const uint8_t question = ASK;

    kill(witness, SIGCONT);
    send(line, &question, 1, MSG_NOSIGNAL | MSG_DONTWAIT); /* if it has gone, we hear of that */
    asked_at = now_ms();
}

static bool listen_to_it(void)
{
    uint8_t said[64];
    ssize_t length;

    while ((length = recv(line, said, sizeof said, MSG_DONTWAIT)) > 0) {
        for (ssize_t i = 0; i < length; i++) {
            if (said[i] == ANSWER)
                answered();
            else if (said[i] < NUMBERS)
                heard(said[i]);
        }
    }
    return length < 0 && (errno == EAGAIN || errno == EINTR);
}

void witness_listen(void)
{
    if (line < 0)
        return;
    bool there = listen_to_it();
    if (there && asked_at == 0 && count > 0 && now_ms() - waiting[0].since >= APART_MS)
        ask();
    if (!there || (asked_at != 0 && now_ms() - asked_at > ANSWER_MS)) {
        witness_end();
        witness_start();
    }
}

int witness_deadline(void)
{
    uint64_t now = now_ms();

    if (line < 0 || (count == 0 && asked_at == 0))
        return -1;
    uint64_t due = asked_at != 0 ? asked_at + ANSWER_MS + 1 : waiting[0].since + APART_MS;
    return due > now ? (int)(due - now) : 0;
}
