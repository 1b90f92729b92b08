#define _GNU_SOURCE
#include "ports.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "console.h"
#include "files.h"

enum { PORT_WAIT_MS = 5000, STEP_NS = 2000000 };

static const char names[] = "/sys/class/virtio-ports";

/* Open what is there and not open yet; returns how many are open. */
static size_t look(int fds[], size_t limit)
{
    DIR *all = opendir(names);
    struct dirent *entry;
    size_t count = 0;

    while (all != NULL && (entry = readdir(all)) != NULL) {
        char path[512], name[64], end;
        unsigned index;

        snprintf(path, sizeof path, "%s/%s/name", names, entry->d_name);
        if (entry->d_name[0] == '.' || !file_read(path, name, sizeof name) ||
            sscanf(name, "encamp.%u%c", &index, &end) < 1 || index >= limit || fds[index] >= 0)
            continue;
        snprintf(path, sizeof path, "/dev/%s", entry->d_name);
        fds[index] = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
        if (fds[index] < 0 && errno != ENOENT)
            say("port %s could not be opened: %s", path, strerror(errno));
    }
    if (all != NULL)
        closedir(all);
    for (size_t i = 0; i < limit; i++)
        count += fds[i] >= 0;
    return count;
}

size_t ports_open(int fds[], size_t limit)
{
    uint64_t end = now_ms() + PORT_WAIT_MS;
    struct timespec step = {.tv_nsec = STEP_NS};
    size_t count;

    for (size_t i = 0; i < limit; i++)
        fds[i] = -1;
    /* their names come one by one after the device itself */
    while ((count = look(fds, limit)) < limit && now_ms() < end)
        nanosleep(&step, NULL);
    return count;
}
