#define _GNU_SOURCE
#include "surroundings.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "console.h"

enum { FILES_MOST = 1 << 20 }; /* unless somebody has changed it */

static int set_at_most(int resource, struct rlimit limit, rlim_t most)
{
    limit.rlim_max = limit.rlim_max < most ? limit.rlim_max : most;
    limit.rlim_cur = limit.rlim_cur < limit.rlim_max ? limit.rlim_cur : limit.rlim_max;
    return setrlimit(resource, &limit);
}

/* While it is still root's to raise them. As many open files as elsewhere may be more than this
   kernel allows anybody; and what may not be raised at all can still be lowered. */
static void set_limits(const struct launch *launch)
{
    for (int resource = 0; resource < RLIM_NLIMITS; resource++) {
        struct rlimit now;

        if ((launch->limited >> resource & 1) == 0 || getrlimit(resource, &now) < 0 ||
            setrlimit(resource, &launch->limits[resource]) == 0)
            continue;
        if (resource != RLIMIT_NOFILE ||
            set_at_most(resource, launch->limits[resource], FILES_MOST) < 0)
            set_at_most(resource, launch->limits[resource], now.rlim_max);
    }
}

/* What a machine's guest program has that a process elsewhere has not. */
static void leave_the_program_behind(void)
{
    struct rlimit files = {1024, 524288};
    struct sched_param normal = {.sched_priority = 0};

    setrlimit(RLIMIT_NOFILE, &files);
    /* the priority was reset by the fork, the policy was not */
    syscall(SYS_sched_setscheduler, 0, SCHED_OTHER, &normal);
    /* the first process of a machine is spared anyway, and has nothing to leave behind */
    int adjust = getppid() == 1 ? -1 : open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (adjust >= 0) {
        ssize_t written = write(adjust, "0", 1);
        (void)written; /* a machine without it has no use for it */
        close(adjust);
    }
}

void surroundings_leave(void)
{
    static const unsigned long standard[4]; /* the kernel's sigaction: no handler, no flags */
    sigset_t none;

    /* asked of the kernel itself: the C library keeps a few of its own to itself */
    for (int number = 1; number < NSIG; number++)
        syscall(SYS_rt_sigaction, number, standard, NULL, 8);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (in_machine)
        leave_the_program_behind();
}

void surroundings_take(const struct launch *launch)
{
    umask(launch->mask);
    set_limits(launch);
}
