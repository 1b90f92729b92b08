#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "archive_write.h"

static char **left_out;

static bool is_left_out(void)
{
    size_t length = strlen(archive_name);

    for (char **path = left_out; *path != NULL; path++) {
        size_t end = strlen(*path);

        if (strcmp(*path, archive_name) == 0)
            return true;
        if (end > 0 && (*path)[end - 1] == '/' && length > end &&
            strncmp(*path, archive_name, end) == 0)
            return true;
    }
    return false;
}

/* Stands for what the image has and the machine removed. */
static bool is_whiteout(int directory, const char *path)
{
    struct stat status;

    return fstatat(directory, path, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
           S_ISCHR(status.st_mode) && status.st_rdev == 0;
}

/* Those that mean the same in another machine, and that this directory hides what it covers. */
static bool part_of_image(const char *key)
{
    return strncmp(key, "user.", 5) == 0 || strcmp(key, "security.capability") == 0 ||
           strcmp(key, "trusted.overlay.opaque") == 0;
}

static void pack_kept(int directory, const char *path, unsigned depth);

static void pack_opened(int fd, const struct stat *status, unsigned depth)
{
    static uint8_t attributes[XATTR_LIMIT];
    const char *earlier = NULL;
    char size[24];

    if (S_ISREG(status->st_mode) && status->st_nlink > 1)
        earlier = archive_earlier(status);
    if (earlier != NULL) {
        archive_entry(KIND_HARDLINK, status, earlier, strlen(earlier), NULL, 0);
        close(fd);
        return;
    }
    size_t count = archive_attributes(fd, part_of_image, attributes);
    if (S_ISDIR(status->st_mode)) {
        archive_entry(KIND_DIRECTORY, status, NULL, 0, attributes, count);
        archive_below(fd, depth, pack_kept);
    } else {
        snprintf(size, sizeof size, "%lld", (long long)status->st_size);
        archive_entry(KIND_FILE, status, size, strlen(size), attributes, count);
        archive_content(fd, status, true);
        close(fd);
    }
}

static void pack_device(const struct stat *status)
{
    char numbers[32];

    snprintf(numbers, sizeof numbers, "%u:%u", major(status->st_rdev), minor(status->st_rdev));
    archive_entry(S_ISCHR(status->st_mode) ? KIND_CHARACTER : KIND_BLOCK, status, numbers,
                  strlen(numbers), NULL, 0);
}

static void pack(int directory, const char *path, unsigned depth)
{
    struct stat status;

    if (fstatat(directory, path, &status, AT_SYMLINK_NOFOLLOW) < 0) {
        if (errno != ENOENT) /* it was removed a moment ago: as if it had been before */
            archive_problem(strerror(errno));
    } else if (S_ISLNK(status.st_mode)) {
        char target[PATH_MAX + 1];
        ssize_t length = readlinkat(directory, path, target, sizeof target);

        if (length >= 0)
            archive_entry(KIND_SYMLINK, &status, target, (size_t)length, NULL, 0);
        else if (errno != ENOENT)
            archive_problem(strerror(errno));
    } else if (S_ISFIFO(status.st_mode)) {
        archive_entry(KIND_FIFO, &status, NULL, 0, NULL, 0);
    } else if (S_ISCHR(status.st_mode) || S_ISBLK(status.st_mode)) {
        pack_device(&status);
    } else if (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode)) {
        int fd = openat(directory, path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | O_NOFOLLOW);

        if (fd < 0 && errno != ENOENT) {
            archive_problem(strerror(errno));
        } else if (fd >= 0 && (fstat(fd, &status) < 0 ||
                               !(S_ISREG(status.st_mode) || S_ISDIR(status.st_mode)))) {
            archive_problem("it changed while it was being saved");
            close(fd);
        } else if (fd >= 0) {
            pack_opened(fd, &status, depth);
        }
    } /* a socket is nothing without its process */
}

static void pack_kept(int directory, const char *path, unsigned depth)
{
    if (!is_left_out() || is_whiteout(directory, path))
        pack(directory, path, depth);
}

int archive_changes(int layer, char **paths)
{
    int top = openat(layer, "upper", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (top < 0) {
        fprintf(stderr, "this machine has no layer of changes over its image\n");
        return 1;
    }
    left_out = paths;
    archive_begin();
    archive_name[0] = 0;
    archive_below(top, 0, pack_kept);
    return archive_end();
}
