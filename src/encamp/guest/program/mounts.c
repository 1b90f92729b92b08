#define _GNU_SOURCE
#include "mounts.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>

#include "console.h"
#include "files.h"
#include "frames.h"

enum { MOUNT_LIMIT = 64, TAG_LIMIT = 32 };

/* The largest message Linux's virtio transport takes. With cache=mmap reads and writes go to the
   host as with cache=none, and programs may map files writable. */
static const char options[] = "trans=virtio,version=9p2000.L,msize=512000,cache=mmap";

static char *mounted[MOUNT_LIMIT];
static size_t mounted_count;

int mounts_add(const uint8_t *payload, size_t length, char *text, size_t size)
{
    char tag[TAG_LIMIT + 1], path[PATH_MAX];
    struct field readonly;
    unsigned long flags = MS_NODEV | MS_NOSUID;
    int error = 0;

    if (!field_text(payload, length, KEY_TAG, tag, sizeof tag) ||
        !field_text(payload, length, KEY_PATH, path, sizeof path) || !path_plain(path)) {
        snprintf(text, size, "a share needs a tag and an absolute path without '..'");
        return EINVAL;
    }
    if (!in_machine) {
        snprintf(text, size, "shares cannot be mounted outside a machine");
        return ENOTSUP;
    }
    if (mounted_count == MOUNT_LIMIT) {
        snprintf(text, size, "too many shares are mounted");
        return ENFILE;
    }
    if (field_find(payload, length, KEY_READONLY, &readonly))
        flags |= MS_RDONLY;
    char *kept = strdup(path);
    if (kept == NULL)
        error = ENOMEM;
    if (error == 0)
        error = directory_make(path, 0755);
    if (error == 0 && mount(tag, path, "9p", flags, options) < 0)
        error = errno;
    if (error != 0) {
        const char *why = error == ENODEV ? "the image's kernel has no 9p file system"
                          : error == ENOENT ? "the machine has no share of that tag"
                                            : strerror(error);
        free(kept);
        snprintf(text, size, "share '%s' could not be mounted on %.300s: %s", tag, path, why);
        return error;
    }
    mounted[mounted_count++] = kept;
    return 0;
}

int mounts_remove(char *text, size_t size)
{
    while (mounted_count > 0) {
        char *path = mounted[mounted_count - 1];

        if (umount2(path, UMOUNT_NOFOLLOW) < 0 && errno != EINVAL && errno != ENOENT) {
            int error = errno;

            snprintf(text, size, "%s is in use and could not be unmounted: %s", path,
                     strerror(error));
            return error;
        }
        free(path);
        mounted_count--;
    }
    return 0;
}
