/* Signals wait in a descriptor until we look. The one that stops every process does so at once:
   whoever carries the job sees that we are stopped. */
#define _GNU_SOURCE
#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "starter.h"

static const int left_alone[] = {SIGKILL, SIGSTOP, SIGSEGV, SIGBUS,
                                 SIGILL,  SIGFPE,  SIGTRAP, SIGSYS};
static sigset_t before;
static int descriptor = -1;

uint64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static sigset_t those_taken(void)
{
    sigset_t taken;

    memset(&taken, 0xff, sizeof taken); /* also those that the C library keeps to itself */
    for (size_t i = 0; i < sizeof left_alone / sizeof *left_alone; i++)
        sigdelset(&taken, left_alone[i]);
    return taken;
}

int signals_open(void)
{
    sigset_t taken = those_taken();

    return signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
}

void signals_take(void)
{
    sigset_t taken = those_taken();

    sigprocmask(SIG_BLOCK, &taken, &before);
    descriptor = signals_open();
    if (descriptor < 0)
        fail(FAILED_LATER, "Signals cannot be waited for.");
}

void signals_give_back(void)
{
    sigprocmask(SIG_SETMASK, &before, NULL);
}

int signals_descriptor(void)
{
    return descriptor;
}

/* What we were started to ignore, the job would have been; a broken pipe or an ended child is our
   own affair. */
static bool concerns_the_job(int number)
{
    struct sigaction action;

    if (number == SIGPIPE || number == SIGCHLD)
        return false;
    return sigaction(number, NULL, &action) < 0 || action.sa_handler != SIG_IGN;
}

int signals_next(void)
{
    struct signalfd_siginfo info;

    while (read(descriptor, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGCHLD)
            guard_renew();
        if (concerns_the_job((int)info.ssi_signo))
            return (int)info.ssi_signo;
    }
    return 0;
}

enum { NUMBERS = 65, TIMES_MOST = 255, REAL_TIME_FIRST = 32 };

static uint8_t owed[2][NUMBERS]; /* how often; to all of the job, and to its first process alone */
static bool kept[NUMBERS];       /* came before the job had begun */

static bool asks_to_stop(int number)
{
    return number == SIGTSTP || number == SIGTTIN || number == SIGTTOU;
}

/* What asks to stop and what has a process go on undo each other, as in the kernel: of those that
   have not got there yet, the last counts. */
static bool undoes(int number, int other)
{
    return (number == SIGCONT && asks_to_stop(other)) || (asks_to_stop(number) && other == SIGCONT);
}

static void undo(int number)
{
    for (int other = 1; other < NUMBERS; other++) {
        if (undoes(number, other)) {
            owed[false][other] = owed[true][other] = 0;
            kept[other] = false;
        }
    }
}

void signals_owe(int number, bool alone)
{
    undo(number);
    if (owed[alone][number] < TIMES_MOST)
        owed[alone][number]++;
}

int signals_owed(bool *alone)
{
    for (int number = 1; number < NUMBERS; number++) {
        *alone = owed[false][number] == 0;
        if (owed[*alone][number] != 0)
            return number;
    }
    return 0;
}

void signals_sent(int number, bool alone)
{
    owed[alone][number]--;
}

void signals_forget(void)
{
    memset(owed, 0, sizeof owed);
    memset(kept, 0, sizeof kept);
}

/* One that asks for something, or tells something, waits until the job has begun. Any other ends
   a job that has set nothing against it yet. */
bool signals_deadly(int number)
{
    switch (number) {
    case SIGCONT:
    case SIGTSTP:
    case SIGTTIN:
    case SIGTTOU:
    case SIGWINCH:
    case SIGURG:
    case SIGUSR1:
    case SIGUSR2:
    case SIGALRM:
    case SIGIO:
        return false;
    default:
        return number < REAL_TIME_FIRST;
    }
}

void signals_keep(int number)
{
    if (signals_deadly(number))
        die_of(number);
    undo(number);
    kept[number] = true;
}

bool signals_kept(void)
{
    return memchr(kept, true, sizeof kept) != NULL;
}

void signals_release(bool alone)
{
    for (int number = 1; number < NUMBERS; number++) {
        if (kept[number])
            signals_owe(number, alone);
        kept[number] = false;
    }
}

void die_of(int number)
{
    struct rlimit none = {0, 0};
    static const unsigned long standard[4]; /* the kernel's sigaction: no handler, no flags */
    uint64_t only = UINT64_C(1) << (number - 1);

    /* its core, if it left one, lies where it ended */
    setrlimit(RLIMIT_CORE, &none);
    prctl(PR_SET_DUMPABLE, 0);
    syscall(SYS_rt_sigaction, number, standard, NULL, sizeof only);
    kill(getpid(), number);
    syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, &only, NULL, sizeof only);
    _exit(128 + number);
}

void pause_for(uint32_t milliseconds)
{
    uint64_t until = now_ms() + milliseconds;

    for (uint64_t now = now_ms(); now < until; now = now_ms()) {
        struct pollfd polled = {.fd = descriptor, .events = POLLIN};
        int number;

        poll(&polled, 1, (int)(until - now));
        while ((number = signals_next()) != 0)
            signals_keep(number);
    }
}

uint32_t next_step(uint32_t milliseconds)
{
    milliseconds += milliseconds / 2;
    return milliseconds < STEP_LAST_MS ? milliseconds : STEP_LAST_MS;
}
