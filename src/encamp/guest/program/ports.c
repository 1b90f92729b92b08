#define _GNU_SOURCE
#include "ports.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "console.h"
#include "files.h"

enum { PORT_WAIT_MS = 5000, STEP_NS = 2000000, SOON_NS = 1000000 };

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

/* -1 with errno. */
static int open_named(const char *wanted)
{
    DIR *all = opendir(names);
    struct dirent *entry;
    int fd = -1, error = ENOENT;

    while (fd < 0 && all != NULL && (entry = readdir(all)) != NULL) {
        char path[512], name[64];

        snprintf(path, sizeof path, "%s/%s/name", names, entry->d_name);
        if (entry->d_name[0] == '.' || !file_read(path, name, sizeof name))
            continue;
        name[strcspn(name, "\n")] = 0;
        if (strcmp(name, wanted) != 0)
            continue;
        snprintf(path, sizeof path, "/dev/%s", entry->d_name);
        fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
        error = errno;
    }
    if (all != NULL)
        closedir(all);
    errno = error;
    return fd;
}

int port_open(const char *name)
{
    uint64_t end = now_ms() + PORT_WAIT_MS;
    struct timespec step = {.tv_nsec = SOON_NS};
    int fd = -1, error = ENOTCONN;

    for (; now_ms() < end; nanosleep(&step, NULL)) {
        if (fd < 0)
            fd = open_named(name);
        if (fd < 0) {
            error = errno;
            continue;
        }
        struct pollfd there = {.fd = fd, .events = POLLOUT};
        error = ENOTCONN;
        if (poll(&there, 1, 0) >= 0 && (there.revents & POLLHUP) == 0 &&
            fcntl(fd, F_SETFL, 0) == 0)
            return fd;
    }
    if (fd >= 0)
        close(fd);
    errno = error;
    return -1;
}
