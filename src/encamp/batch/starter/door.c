#define _GNU_SOURCE
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "starter.h"

enum { NOTE_AFTER_MS = 2000 };

static int try_door(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = DOOR};
    int door = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (door < 0)
        return -1;
    if (connect(door, (struct sockaddr *)&address, sizeof address) < 0) {
        close(door);
        return -1;
    }
    return door;
}

int door_open(uint32_t patience_ms, const char *note)
{
    uint64_t start = now_ms(), waited = 0;
    uint32_t step = STEP_FIRST_MS;
    int door;

    while ((door = try_door()) < 0 && waited < patience_ms) {
        if (note != NULL && waited >= NOTE_AFTER_MS) {
            say("%s", note);
            note = NULL;
        }
        pause_for(step);
        waited = now_ms() - start;
        step = next_step(step);
    }
    return door;
}
