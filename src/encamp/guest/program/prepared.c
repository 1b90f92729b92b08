#define _GNU_SOURCE
#include "prepared.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "launch.h"

enum {
    COMMAND_MOST = 65536 - sizeof(size_t), /* larger ones have a process made for them */
    ASIDE = 64,                            /* descriptors out of the way of where they are to be */
    STATUS = CHANNELS,
    GO,
    PIPES,
};

/* Seen by both: to send it through a socket would take longer than a fork. */
struct command {
    size_t length;
    uint8_t payload[COMMAND_MOST];
};

static struct command *command;
static struct prepared ready; /* pid 0: there is none */

static void close_all(int fds[PIPES])
{
    for (int i = 0; i < PIPES; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
}

/* It holds nothing open but its own: whoever waits for the end of anything else is not to wait for
   it, and if its parent ends, so does it. */
static _Noreturn void be_prepared(const int theirs[PIPES])
{
    int fds[PIPES], first = STDERR_FILENO + 1;

    for (int i = 0; i < PIPES; i++) {
        fds[i] = fcntl(theirs[i], F_DUPFD_CLOEXEC, ASIDE);
        if (fds[i] < 0)
            _exit(127);
    }
    for (int i = 0; i < PIPES; i++) {
        if (dup3(fds[i], first + i, O_CLOEXEC) < 0)
            _exit(127);
        fds[i] = first + i;
    }
    syscall(SYS_close_range, first + PIPES, ~0U, 0);
    prctl(PR_SET_NAME, "encamp-prepared");
    launch_alone();
    launch_when_told(command->payload, &command->length, fds, fds[STATUS], fds[GO]);
}

void prepared_make(void)
{
    int ours[PIPES] = {-1, -1, -1, -1, -1}, theirs[PIPES] = {-1, -1, -1, -1, -1};

    if (ready.pid != 0)
        return;
    if (command == NULL) {
        void *shared = mmap(NULL, sizeof *command, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (shared == MAP_FAILED)
            return;
        command = shared;
    }
    bool whole = true;
    for (int i = 0; i < PIPES && whole; i++) {
        bool it_reads = i == CHANNEL_IN || i == GO;
        int ends[2];

        whole = pipe2(ends, O_CLOEXEC | (i == STATUS ? O_NONBLOCK : 0)) == 0;
        if (whole) {
            theirs[i] = ends[it_reads ? 0 : 1];
            ours[i] = ends[it_reads ? 1 : 0];
        }
    }
    pid_t pid = whole ? fork() : -1;
    if (pid == 0)
        be_prepared(theirs);
    close_all(theirs);
    if (pid < 0) {
        close_all(ours); /* each command then has a process made for it */
        return;
    }
    ready = (struct prepared){.pid = pid, .status = ours[STATUS], .go = ours[GO]};
    memcpy(ready.fd, ours, sizeof ready.fd);
}

bool prepared_take(struct prepared *taken, const uint8_t *payload, size_t length)
{
    if (ready.pid == 0 || length > COMMAND_MOST)
        return false;
    memcpy(command->payload, payload, length);
    command->length = length;
    *taken = ready;
    ready.pid = 0;
    return true;
}

void prepared_reaped(pid_t pid)
{
    int ours[PIPES];

    if (ready.pid != pid)
        return;
    memcpy(ours, ready.fd, sizeof ready.fd);
    ours[STATUS] = ready.status;
    ours[GO] = ready.go;
    close_all(ours);
    ready.pid = 0;
}
