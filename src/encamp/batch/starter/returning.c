/* Giving the job back to its batch system: it was not run, or was lost under way. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "starter.h"

enum {
    RESTARTS_MOST = 3,
    WAIT_MS = 60000,
    PUT_OFF_S = 300, /* longer than Grid Engine takes to hear of an end */
};

/* One that was cancelled meanwhile is not to come back. */
static const char incomplete[] = "incomplete";

/* The batch system ends what it has taken back. */
void leave_given_back(int code, bool wait)
{
    if (wait)
        pause_for(WAIT_MS);
    _exit(code == 0 ? FAILED_LATER : code);
}

/* A command of the batch system's; `place`: where else it may be, `output`: where its goes. */
static pid_t begin(const char *place, const char *const *words, int output)
{
    pid_t child = fork();

    if (child == 0) {
        int nothing = open("/dev/null", O_RDWR);
        char path[4096];

        dup2(nothing, 0);
        dup2(output < 0 ? nothing : output, 1);
        snprintf(path, sizeof path, "%s/%s", place, words[0]);
        /* Signals stay blocked: Slurm ends all of the job, this too, before it has answered. */
        execvp(words[0], (char *const *)words);
        execv(path, (char *const *)words);
        say("%s cannot be run: %s", words[0], strerror(errno));
        _exit(127);
    }
    return child;
}

static bool has_succeeded(pid_t child)
{
    int status;

    if (child < 0)
        return false;
    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR)
            return false;
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool run(const char *place, const char *const *words)
{
    return has_succeeded(begin(place, words, -1));
}

/* The number of an array is that of one of its tasks, too, and means all of them. */
static const char *slurm_id(void)
{
    static char id[128];
    const char *array = variable("SLURM_ARRAY_JOB_ID"), *task = variable("SLURM_ARRAY_TASK_ID");

    if (*array != 0 && *task != 0)
        snprintf(id, sizeof id, "%s_%s", array, task);
    else
        snprintf(id, sizeof id, "%s", variable("SLURM_JOB_ID"));
    return id;
}

static bool requeue(const char *id, bool hold)
{
    const char *words[] = {"scontrol", hold ? "requeuehold" : "requeue", incomplete, id, NULL};

    return run("/usr/bin", words);
}

/* Was it submitted so that it begins only once? Nobody is taken at his word who does not say so. */
static bool begins_once(const char *id)
{
    const char *words[] = {"scontrol", "--oneliner", "show", "job", id, NULL};
    char said[16384];
    size_t length = 0;
    ssize_t count;
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) < 0)
        return false;
    pid_t child = begin("/usr/bin", words, ends[1]);
    close(ends[1]);
    while ((count = read(ends[0], said + length, sizeof said - 1 - length)) > 0)
        length += (size_t)count;
    close(ends[0]);
    said[length] = 0;
    return has_succeeded(child) && strstr(said, " Requeue=0 ") != NULL;
}

static void allow(const char *id, const char *what)
{
    char job[160];
    const char *words[] = {"scontrol", "update", job, what, NULL};

    snprintf(job, sizeof job, "JobId=%s", id);
    run("/usr/bin", words);
}

/* One that has not begun may be queued again also if it may not begin twice: it is allowed to for as
   long as that takes. */
static bool requeue_unbegun(const char *id, bool hold)
{
    if (!begins_once(id))
        return false;
    allow(id, "Requeue=1");
    bool done = requeue(id, hold);
    allow(id, "Requeue=0");
    return done;
}

static bool is_enough(void)
{
    return atoi(variable("SLURM_RESTART_COUNT")) >= RESTARTS_MOST;
}

bool job_was_ended(const struct job *job)
{
    return job->system == GRIDENGINE && gridengine_has_killed();
}

/* If it began anew before Grid Engine has heard of this run's end, it could take that for the end of
   the other one. So its start is put off. It is held instead if it may not be, or if this is not its
   first run: somebody has to look at it. */
static void reschedule(void)
{
    const char *place = variable("SGE_BINARY_PATH"), *number = variable("JOB_ID");
    char id[128], why[256], start[32];
    const char *putting_off[] = {"qalter", "-a", start, number, NULL};
    const char *holding[] = {"qalter", "-h", "u", id, NULL};
    const char *noting[] = {"qalter", "-ac", why, number, NULL};
    const char *words[] = {"qmod", "-rj", id, NULL};
    time_t later = time(NULL) + PUT_OFF_S;

    gridengine_id(id, sizeof id);
    setenv("TZ", "UTC0", true); /* of the time that its command is told */
    strftime(start, sizeof start, "%Y%m%d%H%M.%S", gmtime(&later));
    bool again = atoi(variable("RESTARTED")) == 0 && run(place, putting_off);
    const char *task = strchr(id, '.');
    snprintf(why, sizeof why, "encamp%s%s=Encamp: its starter was killed and no agent came%s",
             task == NULL ? "" : "_", task == NULL ? "" : task + 1,
             again ? "" : "; qrls lets it go");
    run(place, noting);
    if (again || run(place, holding))
        run(place, words);
}

void ask_for_it_back(const struct job *job)
{
    const char *id = job->system == ANOTHER ? "" : slurm_id();

    if (job->system == GRIDENGINE)
        reschedule();
    else if (*id != 0)
        requeue(id, is_enough());
}

void give_back(const struct job *job, bool begun, const char *why)
{
    const char *id = job->system == ANOTHER ? "" : slurm_id();

    if (job->system == GRIDENGINE) {
        /* One that had begun may be one that must not begin twice: somebody has to look at it. */
        bool again = !begun && atoi(variable("RESTARTED")) == 0;

        say("%s The job %s.", why, again ? "goes back into the queue" : "is put into error state");
        _exit(again ? GRIDENGINE_AGAIN : GRIDENGINE_ERROR);
    }
    if (*id != 0) {
        bool hold = is_enough();

        say("%s The job goes back into the queue%s.", why, hold ? ", held" : "");
        if (requeue(id, hold) || (!begun && requeue_unbegun(id, hold)))
            leave_given_back(FAILED_LATER, true);
    }
    fail(FAILED_LATER, "%s The job could not be put back into the queue: submit it again.", why);
}
