/* Giving the job back to its batch system: it was not run, or was lost under way. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "starter.h"

enum {
    RESTARTS_MOST = 3,
    WAIT_MS = 60000,
    GRIDENGINE_AGAIN = 99,
    GRIDENGINE_ERROR = 100,
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

static bool run_scontrol(const char *verb, const char *id)
{
    pid_t child = fork();
    int status;

    if (child == 0) {
        int nothing = open("/dev/null", O_RDWR);

        dup2(nothing, 0);
        dup2(nothing, 1);
        /* Signals stay blocked: Slurm ends all of the job, this too, before it has answered. */
        execlp("scontrol", "scontrol", verb, incomplete, id, (char *)NULL);
        execl("/usr/bin/scontrol", "scontrol", verb, incomplete, id, (char *)NULL);
        say("scontrol cannot be run: %s", strerror(errno));
        _exit(127);
    }
    if (child < 0)
        return false;
    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR)
            return false;
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void give_back(const struct job *job, bool begun, const char *why)
{
    const char *id = job->system == ANOTHER ? "" : variable("SLURM_JOB_ID");

    if (job->system == GRIDENGINE) {
        /* One that had begun may be one that must not begin twice: somebody has to look at it. */
        bool again = !begun && atoi(variable("RESTARTED")) == 0;

        say("%s The job %s.", why, again ? "goes back into the queue" : "is put into error state");
        _exit(again ? GRIDENGINE_AGAIN : GRIDENGINE_ERROR);
    }
    if (*id != 0) {
        bool hold = atoi(variable("SLURM_RESTART_COUNT")) >= RESTARTS_MOST;

        say("%s The job goes back into the queue%s.", why, hold ? ", held" : "");
        if (run_scontrol(hold ? "requeuehold" : "requeue", id))
            leave_given_back(FAILED_LATER, true);
    }
    fail(FAILED_LATER, "%s The job could not be put back into the queue: submit it again.", why);
}
