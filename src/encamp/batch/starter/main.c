#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "starter.h"

enum { LOSSES_LEAST = 5, LOSSES_MOST = 20, TRIES_MOST = 250, MISTAKES_MOST = 60 };

static const char left_alone[] = "none"; /* the environment of who is not to have one */

int main(int argc, char **argv)
{
    static struct job job;
    struct request request;
    unsigned tries = 0, losses = 0, mistakes = 0;
    uint64_t lost_at = 0;
    uint32_t step = STEP_FIRST_MS;
    bool begun = false;

    have_streams();
    signals_take();
    called(&job, argc, argv);
    if (strcmp(job.environment, left_alone) == 0) {
        if (job.system == GRIDENGINE)
            unsetenv("ENCAMP_ENVIRONMENT"); /* which the site has put there to say so */
        run_plainly(&job);
    }
    guard_start(&job, argv);
    request_make(&request, &job);
    while (losses < LOSSES_MOST && tries < TRIES_MOST && mistakes < MISTAKES_MOST) {
        int door = door_open(PATIENCE_MS, "Encamp's agent does not answer on this host; the job "
                                          "waits for it.");

        if (door < 0)
            give_back(&job, begun, "Encamp's agent did not answer on this host for a minute.");
        request_mark(&request, tries, begun);
        struct answer answer = talk(door, &request, &begun);
        close(door);
        if (answer.why == TRIED)
            tries++;
        switch (answer.kind) {
        case PLAIN:
            run_plainly(&job);
        case SILENT:
            give_back(&job, begun, "Encamp's agent did not say anything on this host.");
        case AGAIN: /* a crowd is waited for as long as there is one */
            if (answer.why == MISTAKEN)
                mistakes++;
            pause_for(answer.milliseconds);
            break;
        case LOST:
            if (losses++ == 0)
                lost_at = now_ms();
            if (losses >= LOSSES_LEAST && now_ms() - lost_at > PATIENCE_MS)
                losses = LOSSES_MOST;
            else
                pause_for(step);
            step = next_step(step);
        }
    }
    give_back(&job, begun, "Encamp's agent could not run the job on this host.");
}
