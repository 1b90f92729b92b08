/* A child of ours that keeps our end to itself if somebody kills us. A batch system that sees its
   job die of a signal takes that for the job's own end, and may have forgotten the job before
   anybody can ask for it back. So the guard traces us: as long as it does not look at how we have
   ended, nobody else can. It takes the job to the door, and lets go when the agent has decided; if
   there is no agent, it gives the job back itself. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "starter.h"

enum {
    ALLOWED_TRIES = 200, /* a millisecond each, until we have allowed it */
    LONGEST_MS = 24 * 3600 * 1000, /* an agent waits for a batch system that is away */
    DOOR_MS = PATIENCE_MS / 2, /* Slurm closes nodes on which it cannot end a job for a minute */
    DOOR_LONG_MS = PATIENCE_MS * 10, /* Grid Engine waits, and what it would do is put off, or held */
    LOOK_MS = 2000, /* between two looks at whether somebody has ended the job meanwhile */
    TASKS_MS = 2 * PATIENCE_MS, /* Grid Engine hears of a host's tasks within its load_report_time */
    TASKS_LOOK_MS = 100,
    GUARDS_MOST = 100, /* whoever kills as many of them means it */
};

static const char title[] = "encamp-guard";
static pid_t guard = -1;
static unsigned guards;
static const struct job *guarded;
static char **called_with;
static volatile bool *ended; /* both have it: the job's command has */

/* ── the guard itself ─────────────────────────────────────────────────────────────────────────── */

static bool stops(int number)
{
    return number == SIGSTOP || number == SIGTSTP || number == SIGTTIN || number == SIGTTOU;
}

/* Neither the job's streams nor its name are held here: nobody waits for us who waits for those,
   and who looks for starters to kill does not mean us. */
static void be_another(char **argv)
{
    char **last = argv;

    while (last[1] != NULL)
        last++;
    size_t room = (size_t)(*last - *argv) + strlen(*last);
    memset(*argv, 0, room);
    strncpy(*argv, title, room);
    prctl(PR_SET_NAME, title);
    setpgid(0, 0);
    for (int number = 1; number < NSIG; number++) {
        if (stops(number) && number != SIGSTOP)
            signal(number, SIG_IGN); /* somebody has to pass it on to the starter */
    }
    close_from(0);
    have_streams();
}

static bool seize(pid_t starter)
{
    const struct timespec moment = {0, 1000000};

    for (int i = 0; i < ALLOWED_TRIES && getppid() == starter; i++) {
        if (ptrace(PTRACE_SEIZE, starter, NULL, NULL) == 0)
            return true;
        if (errno != EPERM)
            return false;
        nanosleep(&moment, NULL);
    }
    return false;
}

/* What is traced stands still at each signal that it does not wait for, until it is told to take
   it; and once it is stopped by that, until it is allowed to hear when it is to go on. */
static void pass_on(pid_t starter)
{
    siginfo_t stop = {0};

    /* its end is not to be looked at, should that have come meanwhile */
    if (waitid(P_PID, (id_t)starter, &stop, WSTOPPED | WNOHANG | __WALL) < 0 || stop.si_pid == 0)
        return;
    int number = stop.si_status & 0xff;
    if (stop.si_status >> 8 == PTRACE_EVENT_STOP)
        ptrace(stops(number) ? PTRACE_LISTEN : PTRACE_CONT, starter, NULL, NULL);
    else
        ptrace(PTRACE_CONT, starter, NULL, (void *)(intptr_t)number);
}

/* True: somebody has killed it, and only we know. */
static bool outlive(pid_t starter)
{
    for (;;) {
        siginfo_t end = {0};

        if (waitid(P_PID, (id_t)starter, &end, WEXITED | WSTOPPED | WNOWAIT | __WALL) < 0) {
            if (errno != EINTR)
                return false;
        } else if (end.si_code == CLD_EXITED || end.si_code == CLD_DUMPED) {
            return false;
        } else if (end.si_code == CLD_KILLED) {
            return end.si_status == SIGKILL;
        } else {
            pass_on(starter);
        }
    }
}

static int open_door_for(const struct job *job)
{
    uint64_t end = now_ms() + (job->system == GRIDENGINE ? DOOR_LONG_MS : DOOR_MS);
    int door = -1;

    for (uint64_t now = now_ms(); door < 0 && now < end && !job_was_ended(job); now = now_ms())
        door = door_open(end - now < LOOK_MS ? (uint32_t)(end - now) : LOOK_MS, NULL);
    return door;
}

/* A daemon of Grid Engine's that is let go of the script before it is of the tasks keeps the job in
   mind for ever, and never begins it again. It ends them together: so the tasks go first. */
static void let_tasks_go_first(void)
{
    uint64_t end = now_ms() + TASKS_MS;

    while (now_ms() < end && gridengine_has_tasks())
        pause_for(TASKS_LOOK_MS);
}

/* What is said is for nobody: our streams lead nowhere. */
static void have_it_decided(struct job *job)
{
    struct request request;
    struct answer answer = {.kind = LOST};
    uint64_t start = now_ms();
    bool begun = false;

    signals_take();
    while (signals_next() != 0)
        continue; /* what came before was for a job that has outlived it */
    request_make(&request, job);
    while (!job_was_ended(job) && now_ms() - start < LONGEST_MS) {
        int door = open_door_for(job);

        if (door >= 0) {
            answer = talk(door, &request, &begun);
            close(door);
        }
        if (answer.kind == PLAIN)
            return;
        if (door < 0 || answer.kind == SILENT)
            break;
        pause_for(answer.kind == AGAIN ? answer.milliseconds : STEP_FIRST_MS);
    }
    if (!job_was_ended(job))
        ask_for_it_back(job);
    else if (job->system == GRIDENGINE)
        let_tasks_go_first();
}

static _Noreturn void be_guard(const struct job *starters, pid_t starter, char **argv)
{
    static char *no_words[] = {NULL};
    static struct job job;

    job = (struct job){.system = starters->system,
                       .environment = "",
                       .words = no_words,
                       .over = starter};
    memcpy(job.system_name, starters->system_name, sizeof job.system_name);
    /* What a starter had begun before this guard is still the starter's. */
    calls_forget();
    witness_forget();
    signals_forget();
    be_another(argv);
    /* A job whose command has ended stays as it is: it must not run twice. */
    if (seize(starter) && outlive(starter) && !*ended)
        have_it_decided(&job);
    _exit(0); /* which lets it go */
}

/* ── and who has it ───────────────────────────────────────────────────────────────────────────── */

static void have_guard(void)
{
    pid_t starter = getpid();

    guard = guards++ < GUARDS_MOST ? fork() : -1;
    if (guard == 0)
        be_guard(guarded, starter, called_with);
    if (guard > 0)
        prctl(PR_SET_PTRACER, guard); /* where that has to be allowed */
}

void guard_start(const struct job *job, char **argv)
{
    if (!job->comes_back)
        return;
    ended = mmap(NULL, sizeof *ended, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (ended == MAP_FAILED)
        return;
    guarded = job;
    called_with = argv;
    have_guard();
}

/* One that has ended by itself may not trace us, and the next one might not either. */
void guard_renew(void)
{
    int status;

    if (guard <= 0 || waitpid(guard, &status, WNOHANG) != guard)
        return;
    guard = -1;
    if (WIFSIGNALED(status) && !*ended)
        have_guard();
}

void guard_tell_ended(void)
{
    if (guard > 0)
        *ended = true;
}

void guard_end(void)
{
    if (guard <= 0)
        return;
    kill(guard, SIGKILL);
    while (waitpid(guard, NULL, 0) < 0 && errno == EINTR)
        continue;
    guard = -1;
}
