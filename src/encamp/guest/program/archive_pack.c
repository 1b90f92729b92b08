#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive_write.h"

static void pack_found(int directory, const char *path, unsigned depth);

static bool users_own(const char *key)
{
    return strncmp(key, "user.", 5) == 0;
}

static void pack_opened(int fd, const struct stat *status, unsigned depth)
{
    static uint8_t attributes[XATTR_LIMIT];
    const char *earlier = NULL;

    if (S_ISREG(status->st_mode) && status->st_nlink > 1)
        earlier = archive_earlier(status);
    if (earlier != NULL) {
        archive_entry(KIND_HARDLINK, status, earlier, strlen(earlier), NULL, 0);
        close(fd);
        return;
    }
    size_t count = archive_attributes(fd, users_own, attributes);
    archive_entry(S_ISDIR(status->st_mode) ? KIND_DIRECTORY : KIND_FILE, status, NULL, 0,
                  attributes, count);
    if (S_ISDIR(status->st_mode)) {
        archive_below(fd, depth, pack_found);
    } else {
        archive_content(fd, status, false);
        close(fd);
    }
}

static void pack(int directory, const char *path, bool follow, unsigned depth)
{
    struct stat status;

    if (fstatat(directory, path, &status, follow ? 0 : AT_SYMLINK_NOFOLLOW) < 0) {
        archive_problem(strerror(errno));
    } else if (S_ISLNK(status.st_mode)) {
        char target[PATH_MAX + 1];
        ssize_t length = readlinkat(directory, path, target, sizeof target);

        if (length < 0)
            archive_problem(strerror(errno));
        else
            archive_entry(KIND_SYMLINK, &status, target, (size_t)length, NULL, 0);
    } else if (S_ISFIFO(status.st_mode)) {
        archive_entry(KIND_FIFO, &status, NULL, 0, NULL, 0);
    } else if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) {
        archive_problem("a socket or device cannot be copied");
    } else {
        /* never wait: what was a file may have become a fifo since */
        int fd = openat(directory, path,
                        O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | (follow ? 0 : O_NOFOLLOW));

        if (fd < 0) {
            archive_problem(strerror(errno));
        } else if (fstat(fd, &status) < 0 ||
                   !(S_ISREG(status.st_mode) || S_ISDIR(status.st_mode))) {
            archive_problem("it changed while it was being copied");
            close(fd);
        } else {
            pack_opened(fd, &status, depth);
        }
    }
}

static void pack_found(int directory, const char *path, unsigned depth)
{
    pack(directory, path, false, depth);
}

/* A match becomes a tree named by its last component, whatever directories it was found in. What
   was asked for by name is followed if it is a link: the machine may be gone when it is read. */
static void pack_match(char *path)
{
    size_t length = strlen(path);
    char real[PATH_MAX];

    while (length > 1 && path[length - 1] == '/')
        path[--length] = 0;
    const char *last = strrchr(path, '/');
    last = last == NULL ? path : last + 1;
    if (*last == 0 || strcmp(last, ".") == 0 || strcmp(last, "..") == 0)
        last = realpath(path, real) == NULL ? "" : strrchr(real, '/') + 1;
    if (*last == 0) {
        snprintf(archive_name, sizeof archive_name, "%s", path);
        archive_problem("the root directory has no name to be copied under");
        return;
    }
    snprintf(archive_name, sizeof archive_name, "%s", last);
    pack(AT_FDCWD, path, access(path, F_OK) == 0, 0);
}

int archive_pack(const char *base, char **patterns)
{
    archive_begin();
    int error = chdir(base) < 0 ? errno : 0;
    for (; *patterns != NULL && !archive_broken; patterns++) {
        glob_t found;
        int outcome = GLOB_NOMATCH;

        /* an absolute pattern does not care about the base */
        if (error == 0 || **patterns == '/') {
            outcome = glob(*patterns, 0, NULL, &found);
            if (outcome == GLOB_NOMATCH && access(*patterns, F_OK) == 0) {
                pack_match(*patterns); /* brackets can be part of a name */
                continue;
            }
        }
        if (outcome != 0) {
            snprintf(archive_name, sizeof archive_name, "%s", *patterns);
            if (outcome == GLOB_NOMATCH)
                archive_entry(KIND_MISSING, NULL, NULL, 0, NULL, 0);
            else
                archive_problem("the machine has no memory left");
            continue;
        }
        for (size_t i = 0; i < found.gl_pathc; i++)
            pack_match(found.gl_pathv[i]);
        globfree(&found);
    }
    return archive_end();
}
