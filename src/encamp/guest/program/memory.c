#define _GNU_SOURCE
#include "memory.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "console.h"
#include "files.h"
#include "stream.h"

enum {
    LOOK_MS = 2000,
    PAGE = 4096,
    PAGES = 256, /* more than the kernel keeps aside for each processor */
};

static const char counted[] = "\noom_kill ";
static const char ran_out[] =
    "The memory of the machine ran out, and its kernel ended processes for that.";

static uint64_t due;
static int questions = -1; /* to the one who asks; a pipe would take memory to be written to */
static pid_t asking, spare; /* 0: there is none */
static unsigned long known; /* how many the kernel had ended when that was last looked at */
static bool unread; /* a command has ended well since */

/* ── two helpers ──────────────────────────────────────────────────────────────────────────────── */

static volatile char *take_memory(void)
{
    volatile char *start =
        mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    for (size_t i = 0; start != MAP_FAILED && i < PAGES; i++)
        start[i * PAGE] = 1;
    return start;
}

/* When memory runs out, a command can come to wait for a page of its own program to be read in
   again. What the kernel needs for that, it asks for in a way that never ends anybody, and so it
   may ask for ever. Whoever asks in the usual way makes it end the largest process. */
static void be_asking(void)
{
    uint64_t asked;

    while (read(questions, &asked, sizeof asked) == (ssize_t)sizeof asked) {
        volatile char *start = take_memory();

        if (start != MAP_FAILED)
            munmap((void *)start, PAGES * PAGE);
    }
}

/* One that was ended is no longer seen while it gives its memory back. If somebody asks for memory
   in that moment, and nobody is left to be ended, the kernel gives up, and the machine with it. So
   there is one more, with some memory to give. */
static _Noreturn void be_spare(void)
{
    take_memory();
    for (;;)
        pause();
}

/* Ended after everybody else. */
static pid_t have_helper(void (*be)(void), const char *name, const char *adjustment)
{
    pid_t helper = fork();

    if (helper != 0)
        return helper < 0 ? 0 : helper;
    if (file_write("/proc/self/oom_score_adj", adjustment, strlen(adjustment), 0600) != 0)
        _exit(1); /* one that is spared would be of no use */
    prctl(PR_SET_NAME, name);
    dup2(questions, 0);
    syscall(SYS_close_range, 1, ~0U, 0);
    questions = 0;
    be();
    _exit(0);
}

static void have_helpers(void)
{
    if (questions < 0)
        questions = eventfd(0, EFD_CLOEXEC);
    if (questions >= 0 && asking == 0)
        asking = have_helper(be_asking, "encamp-memory", "-998");
    if (questions >= 0 && spare == 0)
        spare = have_helper(be_spare, "encamp-spare", "-999");
}

void memory_reaped(pid_t pid)
{
    if (pid != asking && pid != spare)
        return;
    if (pid == asking)
        asking = 0;
    else
        spare = 0;
    due = now_ms() + LOOK_MS; /* others are made when there may be memory again */
}

/* ── what the kernel did ──────────────────────────────────────────────────────────────────────── */

static unsigned long count_ended(void)
{
    static char text[32768];
    const char *found = file_read("/proc/vmstat", text, sizeof text) ? strstr(text, counted) : NULL;

    return found == NULL ? 0 : strtoul(found + sizeof counted - 1, NULL, 10);
}

void memory_tell(unsigned long before, char *text, size_t room)
{
    known = in_machine ? count_ended() : 0;
    if (known > before)
        snprintf(text, room, "%s", ran_out);
}

void memory_ended_well(void)
{
    unread = in_machine;
}

void memory_settle(void)
{
    if (unread)
        known = count_ended();
    unread = false;
}

unsigned long memory_begin(void)
{
    memory_settle();
    if (in_machine && streams_any())
        known = count_ended();
    return known;
}

/* ── and who has it ───────────────────────────────────────────────────────────────────────────── */

void memory_start(void)
{
    known = count_ended();
    have_helpers();
}

int memory_deadline(void)
{
    if (!in_machine || !streams_any()) {
        due = 0;
        return -1;
    }
    uint64_t now = now_ms();
    if (due == 0)
        due = now + LOOK_MS;
    return due > now ? (int)(due - now) : 0;
}

void memory_look(void)
{
    if (due == 0 || now_ms() < due)
        return;
    due = now_ms() + LOOK_MS;
    if (asking == 0 || spare == 0)
        have_helpers();
    else
        eventfd_write(questions, 1);
}
