/* Commands of the batch system's that the job calls from its machine. They are begun here, where
   the job is for its batch system: as its user, below its daemon, with its limits. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "starter.h"

enum { CALLS_MOST = 64, WORDS_MOST = 1 << 17, HEAD = 5 };

struct call {
    enum { FREE, RUNNING, ENDED } state;
    uint32_t number;
    pid_t pid;
    uint8_t kind, value;
};

static struct call calls[CALLS_MOST];

static uint32_t get_u32(const uint8_t *from)
{
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 |
           (uint32_t)from[3] << 24;
}

/* Grid Engine ends a job for good if a task of it (qrsh -inherit) dies before the job is taken back.
   So these do not end with us, nor before it is known what becomes of the job. It ends all that is
   left of a job itself. */
bool calls_are_tasks(void)
{
    return *variable("SGE_JOB_SPOOL_DIR") != 0;
}

/* ── the command, before it is one ────────────────────────────────────────────────────────────── */

static _Noreturn void cannot_run(const char *what, int error)
{
    fail(error == ENOENT ? 127 : 126, "%s cannot be run: %s", what, strerror(error));
}

/* The words are in a file in memory: fields of u8 tag, u32 length, and a string with its end. */
static void execute(int file)
{
    static char *arguments[WORDS_MOST + 1], *variables[WORDS_MOST + 1];
    char *path = NULL, *directory = NULL;
    size_t argument = 0, variable_count = 0;
    struct stat found;

    if (fstat(file, &found) < 0 || found.st_size <= 0 || found.st_size > FRAME_LIMIT)
        cannot_run("A command", EINVAL);
    size_t left = (size_t)found.st_size;
    uint8_t *at = mmap(NULL, left, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    if (at == MAP_FAILED)
        cannot_run("A command", errno);
    while (left >= HEAD) {
        size_t length = get_u32(at + 1);
        char *text = (char *)at + HEAD;

        if (length == 0 || length > left - HEAD || text[length - 1] != 0)
            cannot_run("A command", EINVAL);
        if (*at == 'x')
            path = text;
        else if (*at == 'w')
            directory = text;
        else if (*at == 'a' && argument < WORDS_MOST)
            arguments[argument++] = text;
        else if (*at == 'm' && variable_count < WORDS_MOST)
            variables[variable_count++] = text;
        else
            cannot_run("A command", E2BIG);
        at += HEAD + length;
        left -= HEAD + length;
    }
    if (path == NULL || argument == 0)
        cannot_run("A command", EINVAL);
    /* the machine's may not be there: then it begins where the job did */
    if (directory != NULL && chdir(directory) < 0)
        errno = 0;
    execve(path, arguments, variables);
    cannot_run(path, errno);
}

static _Noreturn void become(const int files[CALL_FILES], pid_t parent)
{
    bool is_task = calls_are_tasks();

    if (!is_task)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(FAILED_LATER);
    /* groups of our session that stand still when we die get SIGHUP of the kernel */
    if (!is_task || setsid() < 0)
        setpgid(0, 0);
    for (int fd = 0; fd < 3; fd++)
        dup2(files[fd], fd);
    signals_give_back();
    execute(files[3]);
    _exit(FAILED_LATER);
}

/* ── and who looks after it ───────────────────────────────────────────────────────────────────── */

/* It may not have come to lead a group yet. */
static void send_to(const struct call *call, int number)
{
    if (kill(-call->pid, number) < 0 && errno == ESRCH)
        kill(call->pid, number);
}

static struct call *call_in(int state, uint32_t number)
{
    for (struct call *call = calls; call < calls + CALLS_MOST; call++) {
        if ((int)call->state == state && (state != RUNNING || call->number == number))
            return call;
    }
    return NULL;
}

bool calls_begin(uint32_t number, const int files[CALL_FILES])
{
    struct call *call = call_in(FREE, 0);
    pid_t parent = getpid();

    if (call == NULL)
        return false;
    *call = (struct call){.state = RUNNING, .number = number, .pid = fork()};
    if (call->pid == 0)
        become(files, parent);
    if (call->pid < 0) {
        call->state = ENDED;
        call->kind = CALL_NOT_BEGUN;
        call->value = EAGAIN;
    } else if (!calls_are_tasks()) {
        setpgid(call->pid, call->pid);
    }
    return true;
}

void calls_signal(uint32_t number, int signal)
{
    struct call *call = call_in(RUNNING, number);

    if (call != NULL && signal > 0 && signal <= 64)
        send_to(call, signal);
}

void calls_reap(void)
{
    for (struct call *call = calls; call < calls + CALLS_MOST; call++) {
        int status;

        if (call->state != RUNNING || waitpid(call->pid, &status, WNOHANG) != call->pid)
            continue;
        call->state = ENDED;
        call->kind = WIFSIGNALED(status) ? CALL_KILLED : CALL_EXITED;
        call->value = (uint8_t)(WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
}

bool calls_owed(uint8_t frame[CALL_END])
{
    const struct call *call = call_in(ENDED, 0);

    if (call == NULL)
        return false;
    for (int i = 0; i < 4; i++)
        frame[i] = (uint8_t)(call->number >> (8 * i));
    frame[4] = call->kind;
    frame[5] = call->value;
    return true;
}

void calls_told(void)
{
    call_in(ENDED, 0)->state = FREE;
}

void calls_end(void)
{
    for (struct call *call = calls; call < calls + CALLS_MOST; call++) {
        if (call->state == RUNNING) {
            send_to(call, SIGKILL);
            while (waitpid(call->pid, NULL, 0) < 0 && errno == EINTR)
                continue;
        }
        call->state = FREE;
    }
}

void calls_forget(void)
{
    memset(calls, 0, sizeof calls);
}
