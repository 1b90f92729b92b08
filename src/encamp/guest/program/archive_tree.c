#define _GNU_SOURCE
#include "archive_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"

enum { ENTER = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC };

static struct level {
    int fd;
    size_t end;     /* how much of `path` leads here */
    bool declared;  /* an entry of the archive says how it shall be in the end */
    bool opened_up; /* its mode was widened for us and is `mode` otherwise */
    mode_t mode;
    struct timespec mtime;
} levels[DEPTH_LIMIT + 1];
static size_t depth; /* index of the innermost; 0 is the destination */
static char path[NAME_LIMIT + 1];
static int problem;

int tree_begin(const char *destination)
{
    int error = directory_make(destination, 0755);

    depth = 0;
    problem = 0;
    if (error != 0)
        return error;
    levels[0] = (struct level){.fd = open(destination, O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    return levels[0].fd < 0 ? errno : 0;
}

static void leave(void)
{
    struct level *level = &levels[depth--];

    if (level->declared || level->opened_up) {
        if (fchmod(level->fd, level->mode) < 0 && problem == 0)
            problem = errno;
    }
    if (level->declared) {
        struct timespec times[2] = {level->mtime, level->mtime};

        if (futimens(level->fd, times) < 0 && problem == 0)
            problem = errno;
    }
    close(level->fd);
}

/* Go down into one that exists. An owner may have a directory he cannot write to; it is widened
   for as long as we are in it. */
static int go_down(const char *component, size_t end)
{
    struct stat status;

    if (depth == DEPTH_LIMIT) {
        errno = ELOOP;
        return -1;
    }
    int fd = openat(levels[depth].fd, component, ENTER);
    bool opened_up = false;
    if (fd < 0 && errno == EACCES &&
        fstatat(levels[depth].fd, component, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISDIR(status.st_mode) && status.st_uid == geteuid() &&
        fchmodat(levels[depth].fd, component, 0700, 0) == 0) {
        opened_up = true;
        fd = openat(levels[depth].fd, component, ENTER);
    }
    if (fd < 0)
        return -1;
    if (!opened_up && fstat(fd, &status) == 0 && status.st_uid == geteuid() &&
        (status.st_mode & 0700) != 0700)
        opened_up = fchmod(fd, (status.st_mode & 07777) | 0700) == 0;
    levels[++depth] = (struct level){
        .fd = fd, .end = end, .opened_up = opened_up, .mode = status.st_mode & 07777};
    return fd;
}

/* Up to the innermost directory that `name`, cut at `end`, lies in. */
static void go_up(const char *name, size_t end)
{
    while (depth > 0) {
        size_t here = levels[depth].end;

        if (here <= end && strncmp(path, name, here) == 0 &&
            (here == end || name[here] == '/'))
            return;
        leave();
    }
}

static int enter(const char *name, size_t end)
{
    go_up(name, end);
    while (levels[depth].end < end) {
        size_t start = levels[depth].end + (depth > 0);
        size_t length = strcspn(name + start, "/");
        char component[256];

        if (start + length > end)
            length = end - start;
        if (length >= sizeof component) {
            errno = ENAMETOOLONG;
            return -1;
        }
        memcpy(component, name + start, length);
        component[length] = 0;
        if (mkdirat(levels[depth].fd, component, 0755) < 0 && errno != EEXIST)
            return -1;
        memcpy(path, name, start + length);
        if (go_down(component, start + length) < 0)
            return -1;
    }
    return levels[depth].fd;
}

int tree_enter(const char *name, const char **last)
{
    const char *slash = strrchr(name, '/');

    *last = slash == NULL ? name : slash + 1;
    return enter(name, slash == NULL ? 0 : (size_t)(slash - name));
}

int tree_peek(const char *name, const char **last)
{
    int fd = fcntl(levels[0].fd, F_DUPFD_CLOEXEC, 0);

    for (const char *at = name; fd >= 0; at++) {
        size_t length = strcspn(at, "/");
        char component[256];

        if (at[length] == 0) {
            *last = at;
            return fd;
        }
        if (length >= sizeof component) {
            close(fd);
            errno = ENAMETOOLONG;
            return -1;
        }
        memcpy(component, at, length);
        component[length] = 0;
        int next = openat(fd, component, ENTER);
        int error = errno;
        close(fd);
        fd = next;
        errno = error;
        at += length;
    }
    return -1;
}

int tree_make(const char *name, const struct entry *entry)
{
    const char *last;
    size_t length = strlen(name);
    int parent = tree_enter(name, &last);

    if (parent < 0)
        return -1;
    if (mkdirat(parent, last, 0700) < 0 && errno != EEXIST)
        return -1;
    memcpy(path, name, length + 1);
    int fd = go_down(last, length);
    if (fd < 0)
        return -1;
    struct level *level = &levels[depth];
    level->declared = true;
    level->mode = entry->mode;
    level->mtime = (struct timespec){.tv_sec = entry->mtime, .tv_nsec = entry->mtime_ns};
    return fd;
}

int tree_end(void)
{
    while (depth > 0)
        leave();
    close(levels[0].fd);
    return problem;
}
