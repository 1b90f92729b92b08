#define _GNU_SOURCE
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "console.h"

enum { FEW_BLOCKS = 16 };

bool file_read(const char *path, char *to, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t used = 0;
    ssize_t count = 1;

    if (fd < 0)
        return false;
    while (used < size && (count = read(fd, to + used, size - used)) > 0)
        used += (size_t)count;
    close(fd);
    if (count < 0 || used == size)
        return false;
    to[used] = 0;
    return true;
}

static int write_all(int fd, const char *bytes, size_t count)
{
    while (count > 0) {
        ssize_t written = write(fd, bytes, count);

        if (written < 0)
            return errno;
        bytes += written;
        count -= (size_t)written;
    }
    return 0;
}

int file_write(const char *path, const char *bytes, size_t count, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY, mode);

    if (fd < 0)
        return errno;
    int error = write_all(fd, bytes, count);
    if (close(fd) < 0 && error == 0)
        error = errno;
    return error;
}

int file_append(const char *path, const char *bytes, size_t count)
{
    struct stat before;
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY);

    if (fd < 0)
        return errno;
    int error = fstat(fd, &before) < 0 ? errno : write_all(fd, bytes, count);
    if (error != 0 && ftruncate(fd, before.st_size) < 0)
        error = errno;
    if (close(fd) < 0 && error == 0)
        error = errno;
    return error;
}

int file_create(const char *path, const char *bytes, size_t count, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);

    if (fd < 0)
        return errno;
    int error = write_all(fd, bytes, count);
    if (close(fd) < 0 && error == 0)
        error = errno;
    if (error != 0)
        unlink(path);
    return error;
}

int file_replace(const char *path, const char *bytes, size_t count, mode_t mode)
{
    char temporary[PATH_MAX];

    /* several processes may do so at a time */
    if (snprintf(temporary, sizeof temporary, "%s.encamp-%d", path, (int)getpid()) >=
        (int)sizeof temporary)
        return ENAMETOOLONG;
    unlink(temporary);
    int error = file_create(temporary, bytes, count, mode);
    if (error == 0 && rename(temporary, path) < 0) {
        error = errno;
        unlink(temporary);
    }
    return error;
}

int directory_make(const char *path, mode_t mode)
{
    char part[PATH_MAX];
    size_t length = strlen(path);
    struct stat found;

    if (length == 0 || length >= sizeof part)
        return ENAMETOOLONG;
    if (stat(path, &found) == 0 && S_ISDIR(found.st_mode))
        return 0;
    memcpy(part, path, length + 1);
    for (size_t i = 1; i <= length; i++) {
        if (part[i] != '/' && part[i] != 0)
            continue;
        char kept = part[i];
        part[i] = 0;
        if (mkdir(part, kept == 0 ? mode : 0755) < 0 && errno != EEXIST)
            return errno;
        part[i] = kept;
    }
    if (stat(path, &found) < 0)
        return errno;
    return S_ISDIR(found.st_mode) ? 0 : ENOTDIR;
}

bool path_plain(const char *path)
{
    if (*path != '/')
        return false;
    for (const char *at = path; (at = strstr(at, "/..")) != NULL; at += 3) {
        if (at[3] == '/' || at[3] == 0)
            return false;
    }
    return true;
}

void disk_tell(char *text, size_t room)
{
    static const char *const places[] = {"/", "/tmp"};

    for (size_t i = 0; in_machine && i < sizeof places / sizeof *places; i++) {
        struct statvfs found;

        if (statvfs(places[i], &found) < 0 || (found.f_flag & ST_RDONLY) || found.f_blocks == 0)
            continue;
        /* what failed may have left a few blocks that were too few for it */
        bool full = found.f_bavail < FEW_BLOCKS || (found.f_files > 0 && found.f_ffree == 0);
        if (full) {
            snprintf(text, room, "The disk of the machine is full: nothing more fits into %s.",
                     places[i]);
            return;
        }
    }
}
