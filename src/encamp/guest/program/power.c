#define _GNU_SOURCE
#include "power.h"

#include <errno.h>
#include <signal.h>
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

/* Until no process is left that could still be written for, or the time is over. As PID 1 every
   process is a child or becomes one; as a service others cannot be counted and are waited for. */
static void wait_for_all(unsigned limit)
{
    uint64_t end = now_ms() + limit;
    struct timespec step = {.tv_nsec = STEP_NS};

    while (now_ms() < end) {
        pid_t ended = waitpid(-1, NULL, WNOHANG);

        if (ended < 0 && errno == ECHILD && getpid() == 1)
            return;
        if (ended <= 0)
            nanosleep(&step, NULL);
    }
}

void power_off(void)
{
    char text[512];

    if (!in_machine)
        exit(0);
    kill(-1, SIGTERM);
    kill(-1, SIGCONT); /* stopped processes end as well */
    wait_for_all(GRACE_MS);
    kill(-1, SIGKILL);
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
