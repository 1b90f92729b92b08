#define _GNU_SOURCE
#include "power.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "console.h"
#include "mounts.h"

enum { GRACE_MS = 3000, LAST_MS = 500, STEP_NS = 5000000 };

int writable_layer = -1;

/* Like kill(-1), but the relay of the shares is left out: it writes what others have written.
   False: there was nobody. */
static bool signal_others(int number)
{
    DIR *all = opendir("/proc");
    struct dirent *entry;
    bool any = false;

    while (all != NULL && (entry = readdir(all)) != NULL) {
        pid_t pid = atoi(entry->d_name);

        /* kernel threads belong to group 0 */
        if (pid > 1 && pid != getpid() && pid != mounts_relay() && getpgid(pid) > 0)
            any |= kill(pid, number) == 0;
    }
    if (all != NULL)
        closedir(all);
    return any;
}

static void signal_all(int number)
{
    if (mounts_relay() == 0)
        kill(-1, number); /* at once, so that nobody can fork in between */
    else
        signal_others(number);
}

/* Until no process is left that could still be written for, or the time is over. As PID 1 every
   process is a child or becomes one; as a service others cannot be counted and are waited for. */
static void wait_for_all(unsigned limit)
{
    uint64_t end = now_ms() + limit;
    struct timespec step = {.tv_nsec = STEP_NS};

    while (now_ms() < end) {
        int wait_status;
        pid_t ended = waitpid(-1, &wait_status, WNOHANG);

        if (ended > 0)
            mounts_reaped(ended, wait_status);
        else if (getpid() == 1 && (ended < 0 ? errno == ECHILD : !signal_others(0)))
            return;
        else
            nanosleep(&step, NULL);
    }
}

void power_off(void)
{
    char text[512];

    if (!in_machine)
        exit(0);
    kill(-1, SIGTERM); /* the relay of the shares does not heed it */
    kill(-1, SIGCONT); /* stopped processes end as well */
    wait_for_all(GRACE_MS);
    signal_all(SIGKILL);
    wait_for_all(LAST_MS);
    mounts_remove(text, sizeof text);
    sync();
    mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY, NULL);
    if (writable_layer >= 0 && fchdir(writable_layer) == 0)
        mount(NULL, ".", NULL, MS_REMOUNT | MS_RDONLY, NULL);
    sync();
    reboot(RB_POWER_OFF);
    say("the machine could not be switched off");
}
