#define _GNU_SOURCE
#include "relay.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "../../machines/shares/wire.h"
#include "console.h"
#include "files.h"
#include "shortcut.h"

#ifndef PR_SET_IO_FLUSHER
#define PR_SET_IO_FLUSHER 57
#endif

enum {
    PAGE = 4096,
    SECTOR = 512,
    LARGE_PAGE = 2 << 20,
    LARGE_LEAST_MIB = 512, /* with less memory two large pages would be missed elsewhere */
    WRITE_HEAD = sizeof(struct fuse_in_header) + sizeof(struct fuse_write_in),
    FIRST_ANSWER_S = 30,
    LEAVE_S = 2,
    MEMORY_WAIT_MS = 20,
    ASIDE = 64, /* descriptors out of the way of where they are to be */
};

/* No request of a kernel has it: those are counted in twos from zero. */
#define DESTROY_UNIQUE UINT64_MAX

static int port, fuse, window;
static pthread_t sender; /* whose thread requests() is */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all up to the blank line */
static struct outstanding {
    uint64_t unique;
    uint32_t slot;
} *outstanding;
static size_t outstanding_count, outstanding_room;
static bool slot_used[WIRE_SLOTS];

static atomic_bool ended;   /* the server has; set with the lock held */
static atomic_bool sending; /* set with the lock held */
static atomic_bool leaving; /* the file system is unmounted */
static atomic_bool astray;  /* what the server sent made no sense, so no message's end is known */

static struct queued {
    struct queued *next;
    size_t length;
    char bytes[];
} *queue, **queue_end = &queue;
static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t queue_filled = PTHREAD_COND_INITIALIZER;

static void wait_ms(unsigned milliseconds)
{
    struct timespec step = {.tv_nsec = (long)milliseconds * 1000000};

    nanosleep(&step, NULL);
}

/* A page for what goes before the data, then room for the data. A block request takes only so many
   separate pieces of memory, so the data begins a large page if the machine can spare that. */
static char *buffer_make(void)
{
    size_t size = 2 * LARGE_PAGE + PAGE;
    char *start = mmap(NULL, size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (start == MAP_FAILED) {
        say("the relay of the shares has no memory: %s", strerror(errno));
        _exit(1);
    }
    uintptr_t data = ((uintptr_t)start + PAGE + LARGE_PAGE - 1) & ~(uintptr_t)(LARGE_PAGE - 1);
    madvise(start, size, MADV_NOHUGEPAGE);
    if (sysconf(_SC_PHYS_PAGES) / ((1 << 20) / PAGE) >= LARGE_LEAST_MIB)
        madvise((void *)data, LARGE_PAGE, MADV_HUGEPAGE);
    return (char *)data - PAGE;
}

static size_t in_sectors(size_t length)
{
    return (length + SECTOR - 1) / SECTOR * SECTOR;
}

static off_t slot_place(uint32_t slot)
{
    return (off_t)slot * WIRE_SLOT;
}

/* ── what the kernel is told ──────────────────────────────────────────────────────────────────── */

void relay_answer(uint64_t unique, int error, const void *body, size_t length)
{
    struct fuse_out_header out = {(uint32_t)(sizeof out + length), -error, unique};
    struct iovec parts[] = {{&out, sizeof out}, {(void *)body, length}};
    ssize_t written = writev(fuse, parts, 2);

    (void)written; /* it fails for requests that were interrupted or are answered already */
}

static void hand_over(const char *message, size_t length, const char *data, size_t data_length)
{
    struct iovec parts[] = {{(void *)message, length}, {(void *)data, data_length}};
    struct fuse_out_header out;

    if (writev(fuse, parts, 2) >= 0 || errno == ENOENT)
        return;
    /* an answer that the kernel does not accept must not leave its process waiting for ever */
    memcpy(&out, message, sizeof out);
    if (out.unique != 0)
        relay_answer(out.unique, EIO, NULL, 0);
}

/* ── requests on their way ────────────────────────────────────────────────────────────────────── */

static uint32_t take_slot(void)
{
    for (uint32_t slot = 0; window >= 0 && slot < WIRE_SLOTS; slot++) {
        if (!slot_used[slot]) {
            slot_used[slot] = true;
            return slot;
        }
    }
    return WIRE_NO_SLOT;
}

static void free_slot(uint32_t slot)
{
    if (slot == WIRE_NO_SLOT)
        return;
    pthread_mutex_lock(&lock);
    slot_used[slot] = false;
    pthread_mutex_unlock(&lock);
}

/* With the lock held. */
static bool remember(uint64_t unique, uint32_t slot)
{
    if (outstanding_count == outstanding_room) {
        size_t room = outstanding_room * 2 + 64;
        struct outstanding *grown = realloc(outstanding, room * sizeof *grown);

        if (grown == NULL)
            return false;
        outstanding = grown;
        outstanding_room = room;
    }
    outstanding[outstanding_count++] = (struct outstanding){unique, slot};
    return true;
}

/* Permission to send. A request is noted before it is sent, since its answer may come before the
   sending has returned. From here on whoever finds that the server has ended waits until
   `sending` is false, and nothing is noted any more after that was found. */
static bool sending_begin(uint64_t unique, bool answered, bool large, uint32_t *slot)
{
    pthread_mutex_lock(&lock);
    bool may = !ended;
    *slot = may && large ? take_slot() : WIRE_NO_SLOT;
    if (may && answered && !remember(unique, *slot)) {
        if (*slot != WIRE_NO_SLOT)
            slot_used[*slot] = false;
        may = false;
    }
    sending = may;
    pthread_mutex_unlock(&lock);
    return may;
}

/* The answer has come. Returns the request's slot, which the caller frees. */
static uint32_t forget(uint64_t unique)
{
    uint32_t slot = WIRE_NO_SLOT;

    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < outstanding_count; i++) {
        if (outstanding[i].unique == unique) {
            slot = outstanding[i].slot;
            outstanding[i] = outstanding[--outstanding_count];
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return slot;
}

static void server_ended(void)
{
    pthread_mutex_lock(&lock);
    bool first = !ended;
    ended = true;
    for (size_t i = 0; i < outstanding_count; i++)
        relay_answer(outstanding[i].unique, EIO, NULL, 0);
    outstanding_count = 0;
    pthread_mutex_unlock(&lock);
    if (leaving)
        _exit(astray);
    if (first)
        say("the share server has ended: shares of this machine can no longer be used");
    /* The kernel lets a writer wait for the port's next host. One signal is not enough: it can come
       just before the waiting begins. */
    while (sending) {
        pthread_kill(sender, SIGUSR1);
        wait_ms(1);
    }
}

/* ── from the kernel ──────────────────────────────────────────────────────────────────────────── */

static bool has_answer(uint32_t opcode)
{
    return opcode != FUSE_FORGET && opcode != FUSE_BATCH_FORGET && opcode != FUSE_INTERRUPT &&
           opcode != FUSE_NOTIFY_REPLY;
}

static bool send_bytes(const char *bytes, size_t length)
{
    while (length > 0) {
        ssize_t written = write(port, bytes, length);

        if (written > 0) {
            bytes += written;
            length -= (size_t)written;
        } else if (written < 0 && errno == ENOMEM && !ended) {
            wait_ms(MEMORY_WAIT_MS); /* ports need kernel memory to write */
        } else if (written == 0 || errno != EINTR || ended) {
            return false;
        }
    }
    return true;
}

/* `message` has room for the header before it. */
static void send_message(char *message, struct wire_header head)
{
    memcpy(message - sizeof head, &head, sizeof head);
    bool whole = send_bytes(message - sizeof head, sizeof head + head.length);
    sending = false;
    if (!whole)
        server_ended();
}

static void pass_on(char *message, size_t length)
{
    const struct fuse_in_header *in = (const void *)message;
    struct wire_header head = {.kind = WIRE_MESSAGE, .length = (uint32_t)length};
    const struct fuse_read_in *reading = (const void *)(in + 1);
    const struct fuse_write_in *writing = (const void *)(in + 1);
    bool answered = has_answer(in->opcode);
    bool writes = in->opcode == FUSE_WRITE && length > WRITE_HEAD + WIRE_INLINE &&
                  length == WRITE_HEAD + writing->size;
    bool reads = in->opcode == FUSE_READ && reading->size > WIRE_INLINE;

    if (!sending_begin(in->unique, answered, reads || writes, &head.slot)) {
        if (answered)
            relay_answer(in->unique, EIO, NULL, 0);
        return;
    }
    if (writes && head.slot != WIRE_NO_SLOT) {
        size_t count = in_sectors(writing->size);

        if (pwrite(window, message + WRITE_HEAD, count, slot_place(head.slot)) == (ssize_t)count) {
            head.window = writing->size;
            head.length = WRITE_HEAD;
        } else {
            head.slot = WIRE_NO_SLOT; /* it stays taken until the answer has come */
        }
    }
    send_message(message, head);
}

/* The kernel says nothing to a file system that is unmounted, but the server has to forget it, and
   the next relay must find the port at the beginning of a message. */
static _Noreturn void leave(char *message)
{
    struct fuse_in_header in = {.len = sizeof in, .opcode = FUSE_DESTROY,
                                .unique = DESTROY_UNIQUE};
    struct wire_header head = {.kind = WIRE_MESSAGE, .length = sizeof in};

    leaving = true;
    alarm(LEAVE_S);
    if (!sending_begin(in.unique, false, false, &head.slot))
        _exit(astray);
    memcpy(message, &in, sizeof in);
    send_message(message, head);
    for (;;)
        pause(); /* answers() ends the process, or the alarm does */
}

static void *requests(void *unused)
{
    char *message = buffer_make() + PAGE - WRITE_HEAD; /* a write's data are then on a page */

    (void)unused;
    for (;;) {
        ssize_t length = read(fuse, message, WIRE_LONGEST);

        if (length >= (ssize_t)sizeof(struct fuse_in_header)) {
            if (!shortcut_taken((const void *)message))
                pass_on(message, (size_t)length);
        } else if (length >= 0 || (errno != EINTR && errno != EAGAIN && errno != ENOENT)) {
            leave(message);
        }
    }
    return NULL;
}

/* ── from the server ──────────────────────────────────────────────────────────────────────────── */

static void *hand_over_queued(void *unused)
{
    (void)unused;
    for (;;) {
        pthread_mutex_lock(&queue_lock);
        while (queue == NULL)
            pthread_cond_wait(&queue_filled, &queue_lock);
        struct queued *first = queue;
        queue = first->next;
        if (queue == NULL)
            queue_end = &queue;
        pthread_mutex_unlock(&queue_lock);
        hand_over(first->bytes, first->length, NULL, 0);
        free(first);
    }
    return NULL;
}

/* False: there is no memory. */
static bool enqueue(const char *message, size_t length, const char *data, size_t data_length)
{
    struct queued *last = malloc(sizeof *last + length + data_length);

    if (last == NULL)
        return false;
    last->next = NULL;
    last->length = length + data_length;
    memcpy(last->bytes, message, length);
    memcpy(last->bytes + length, data, data_length);
    pthread_mutex_lock(&queue_lock);
    *queue_end = last;
    queue_end = &last->next;
    pthread_cond_signal(&queue_filled);
    pthread_mutex_unlock(&queue_lock);
    return true;
}

/* False: no server says that, or it cannot be kept. */
static bool take_message(const struct wire_header *head, const char *message, char *data)
{
    struct fuse_out_header out;
    uint32_t slot = WIRE_NO_SLOT;
    bool sound = true;

    if (head->length < sizeof out || head->window > WIRE_MOST)
        return false;
    memcpy(&out, message, sizeof out);
    if (out.len != head->length + head->window)
        return false;
    if (out.unique == 0)
        shortcut_notified(message + sizeof out, head->length - sizeof out);
    else
        slot = forget(out.unique);
    if (head->window > 0) {
        size_t count = in_sectors(head->window);

        sound = slot != WIRE_NO_SLOT && slot == head->slot;
        if (!sound || pread(window, data, count, slot_place(slot)) != (ssize_t)count) {
            free_slot(slot);
            relay_answer(out.unique, EIO, NULL, 0);
            return sound;
        }
    }
    free_slot(slot);
    if (head->kind == WIRE_QUEUED)
        return enqueue(message, head->length, data, head->window);
    hand_over(message, head->length, data, head->window);
    return true;
}

static void *forget_all(void *unused)
{
    (void)unused;
    file_write("/proc/sys/vm/drop_caches", "2", 1, 0600);
    return NULL;
}

/* Names and nodes of all that nobody uses. By a thread of its own: what the kernel has to write before it can
   forget is answered by the caller's. */
static void crowded(void)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, forget_all, NULL) == 0)
        pthread_detach(thread);
}

static bool take(const struct wire_header *head, const char *bytes, char *data)
{
    switch (head->kind) {
    case WIRE_MESSAGE:
    case WIRE_QUEUED:
        return take_message(head, bytes, data);
    case WIRE_HINT:
        if (head->length == sizeof(struct wire_hint))
            shortcut_hint(bytes);
        return head->length == sizeof(struct wire_hint);
    case WIRE_CROWDED:
        crowded();
        return head->length == 0;
    case WIRE_CLOSES:
        shortcut_closes();
        return head->length == 0;
    case WIRE_END:
        if (leaving)
            _exit(0);
        return false;
    default:
        return false;
    }
}

/* Returns when the server has ended: true, or false if what it sent makes no sense. */
static bool answers(void)
{
    const size_t room = sizeof(struct wire_header) + WIRE_LONGEST;
    char *bytes = buffer_make(), *data = buffer_make() + PAGE;
    size_t start = 0, end = 0;
    struct wire_header head;

    for (bool first = true;; first = false) {
        while (end - start >= sizeof head) {
            memcpy(&head, bytes + start, sizeof head);
            if (head.length > WIRE_LONGEST)
                return false;
            if (end - start < sizeof head + head.length)
                break;
            if (!take(&head, bytes + start + sizeof head, data))
                return false;
            start += sizeof head + head.length;
        }
        end -= start;
        memmove(bytes, bytes + start, end);
        start = 0;
        ssize_t count = read(port, bytes + end, room - end);
        if (count == 0 || (count < 0 && errno != EINTR))
            return true;
        end += count > 0 ? (size_t)count : 0;
        if (first && !leaving)
            alarm(0);
    }
}

/* ── the process ──────────────────────────────────────────────────────────────────────────────── */

static void wake(int number)
{
    (void)number; /* so that a system call is interrupted */
}

static void take_signals(void)
{
    static const int ignored[] = {SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGUSR2};
    struct sigaction ignore = {.sa_handler = SIG_IGN}, interrupt = {.sa_handler = wake};
    sigset_t none;

    /* the machine's end begins with SIGTERM to everybody, who may then still write */
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
        sigaction(ignored[i], &ignore, NULL);
    sigaction(SIGUSR1, &interrupt, NULL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

_Noreturn void relay_run(int to_server, int to_kernel, int disk)
{
    pthread_t queued;

    port = to_server;
    fuse = to_kernel;
    window = disk;
    take_signals();
    prctl(PR_SET_NAME, "encamp-shares");
    /* memory for the relay must never be waited for from what is written back through it */
    prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0);
    /* If no first answer ever comes, the end of this process ends the waiting of whoever mounts. */
    alarm(FIRST_ANSWER_S);
    if (pthread_create(&queued, NULL, hand_over_queued, NULL) != 0 ||
        pthread_create(&sender, NULL, requests, NULL) != 0) {
        say("the relay of the shares could not start a thread");
        _exit(1);
    }
    astray = !answers();
    server_ended();
    for (;;)
        pause(); /* requests() refuses all that comes, until the file system is unmounted */
}

/* An open session port or event queue would be open here for as long as a share is mounted. */
static void close_others(int fds[3])
{
    const unsigned first = STDERR_FILENO + 1;

    for (int i = 0; i < 3; i++)
        fds[i] = fds[i] < 0 ? -1 : fcntl(fds[i], F_DUPFD, ASIDE);
    for (int i = 0; i < 3; i++) {
        if (fds[i] >= 0)
            fds[i] = dup2(fds[i], (int)first + i);
        else
            close((int)first + i);
    }
    if (syscall(SYS_close_range, first + 3, ~0U, 0) < 0) {
        for (int fd = (int)first + 3; fd < 1024; fd++) /* kernels before 5.9 */
            close(fd);
    }
}

pid_t relay_start(int to_server, int to_kernel, int disk)
{
    int fds[3] = {to_server, to_kernel, disk};
    struct sched_param none = {.sched_priority = 0};
    pid_t child = fork();

    if (child != 0)
        return child;
    setsid();
    syscall(SYS_sched_setscheduler, 0, SCHED_OTHER, &none);
    file_write("/proc/self/oom_score_adj", "-1000", 5, 0600);
    close_others(fds);
    relay_run(fds[0], fds[1], fds[2]);
}
