#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "starter.h"

enum { NOTE_AFTER_MS = 2000, CROWDED_MS = 10 };

/* `crowded`: somebody opens it, but many wait there already. */
static int try_door(bool *crowded)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = DOOR};
    int door = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    *crowded = false;
    if (door < 0)
        return -1;
    if (connect(door, (struct sockaddr *)&address, sizeof address) < 0) {
        *crowded = errno == EAGAIN;
        close(door);
        return -1;
    }
    return door;
}

int door_open(uint32_t patience_ms, const char *note)
{
    uint64_t start = now_ms(), waited = 0;
    uint32_t step = STEP_FIRST_MS;
    bool crowded;
    int door;

    while ((door = try_door(&crowded)) < 0 && waited < patience_ms) {
        if (note != NULL && waited >= NOTE_AFTER_MS) {
            say("%s", note);
            note = NULL;
        }
        /* in a crowd, whoever comes less and less often never gets in */
        pause_for(crowded ? CROWDED_MS : step);
        waited = now_ms() - start;
        if (!crowded)
            step = next_step(step);
    }
    return door;
}
