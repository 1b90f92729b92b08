#define _GNU_SOURCE
#include "mounts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../machines/shares/wire.h"
#include "console.h"
#include "files.h"
#include "frames.h"
#include "ports.h"
#include "relay.h"

enum { MOUNT_LIMIT = 64, TAG_LIMIT = 32, RELAY_END_MS = 4000, STEP_NS = 1000000 };

/* All shares of the machine, a directory each; only root gets past it. */
static const char base[] = "/run/encamp-shares";

static char *mounted[MOUNT_LIMIT];
static size_t mounted_count;
static bool base_mounted;
static pid_t relay;
static bool relay_failed; /* it has left the port in the middle of a message */

/* -1: a machine without it, where all data goes through the port. */
static int window_open(void)
{
    DIR *all = opendir("/sys/block");
    struct dirent *entry;
    int fd = -1;

    while (fd < 0 && all != NULL && (entry = readdir(all)) != NULL) {
        char path[512], serial[64];

        snprintf(path, sizeof path, "/sys/block/%s/serial", entry->d_name);
        if (entry->d_name[0] == '.' || !file_read(path, serial, sizeof serial))
            continue;
        serial[strcspn(serial, "\n")] = 0;
        if (strcmp(serial, WIRE_WINDOW) != 0)
            continue;
        snprintf(path, sizeof path, "/dev/%s", entry->d_name);
        fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
        if (fd < 0)
            say("%s could not be opened: data of shares goes through the port", path);
    }
    if (all != NULL)
        closedir(all);
    return fd;
}

/* The kernel reads 128 KiB ahead, whatever the server says. */
static int read_ahead(void)
{
    struct stat found;
    char path[64];

    /* the first answer that depends on the server */
    if (stat(base, &found) < 0)
        return errno;
    snprintf(path, sizeof path, "/sys/class/bdi/%u:%u/read_ahead_kb", major(found.st_dev),
             minor(found.st_dev));
    file_write(path, "1024", 4, 0600);
    return 0;
}

/* 0 or an errno, and a sentence if it has a better one than strerror(). */
static int mount_base(int port, int window, const char **why)
{
    char options[128];
    int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC), error = 0;

    if (fuse < 0 && errno == ENOENT) {
        /* cannot work, but has the kernel look for the module, which makes the device */
        mount("share", base, "fuse", 0, NULL);
        fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    }
    snprintf(options, sizeof options,
             "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions,"
             "max_read=%u", fuse, WIRE_MOST);
    if (fuse < 0 || mount("share", base, "fuse", MS_NODEV | MS_NOSUID, options) < 0) {
        error = errno;
        if (error == ENODEV || error == ENOENT || error == ENXIO)
            *why = "the image's kernel has no FUSE file system";
    } else {
        base_mounted = true;
        /* the device can be read from now on, and mounting has waited for no answer */
        relay = relay_start(port, fuse, window);
        if (relay < 0) {
            error = errno;
            relay = 0;
        }
    }
    if (fuse >= 0)
        close(fuse); /* only the relay has it now: with the relay the file system ends */
    return error;
}

static int base_add(const char **why)
{
    if (relay_failed) {
        *why = "the earlier shares of this machine did not end in order";
        return EIO;
    }
    int error = directory_make(base, 0700);
    if (error != 0)
        return error;
    int port = port_open(WIRE_PORT);
    if (port < 0) {
        if (errno == ENOENT)
            *why = "the machine has no port for shares";
        else if (errno == ENOTCONN)
            *why = "no share server is at the other end of the port";
        return errno;
    }
    int window = window_open();
    error = mount_base(port, window, why);
    if (window >= 0)
        close(window);
    close(port);
    return error != 0 ? error : read_ahead();
}

static int bind_share(unsigned number, const char *path, bool readonly)
{
    char source[sizeof base + 16];

    snprintf(source, sizeof source, "%s/%u", base, number);
    if (mount(source, path, NULL, MS_BIND, NULL) < 0)
        return errno;
    if (!readonly || mount(NULL, path, NULL,
                           MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NODEV | MS_NOSUID, NULL) == 0)
        return 0;
    int error = errno;
    umount2(path, UMOUNT_NOFOLLOW);
    return error;
}

int mounts_add(const uint8_t *payload, size_t length, char *text, size_t size)
{
    char tag[TAG_LIMIT + 1], path[PATH_MAX], end;
    struct field readonly;
    const char *why = NULL;
    unsigned number;
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
    /* suspending may have been refused after some of them were unmounted */
    for (size_t i = 0; i < mounted_count; i++) {
        if (strcmp(mounted[i], path) == 0) {
            snprintf(text, size, "a share is mounted on %.300s already", path);
            return EBUSY;
        }
    }
    char *kept = strdup(path);
    if (kept == NULL)
        error = ENOMEM;
    else if (sscanf(tag, "share%5u%c", &number, &end) != 1)
        error = ENOENT;
    if (error == 0 && !base_mounted)
        error = base_add(&why);
    if (error == 0)
        error = directory_make(path, 0755);
    if (error == 0)
        error = bind_share(number, path, field_find(payload, length, KEY_READONLY, &readonly));
    if (error != 0) {
        if (error == ENOENT && why == NULL)
            why = "the machine has no share of that tag";
        if (base_mounted && (error == EIO || error == ENOTCONN || error == ECONNREFUSED))
            why = "the share server has ended or does not answer";
        free(kept);
        snprintf(text, size, "share '%s' could not be mounted on %.300s: %s", tag, path,
                 why != NULL ? why : strerror(error));
        return error;
    }
    mounted[mounted_count++] = kept;
    return 0;
}

/* 0 if it is none any more, or an errno and a sentence. */
static int unmount(const char *path, char *text, size_t size)
{
    if (umount2(path, UMOUNT_NOFOLLOW) == 0 || errno == EINVAL || errno == ENOENT)
        return 0;
    int error = errno;
    snprintf(text, size, "%s is in use and could not be unmounted: %s", path, strerror(error));
    return error;
}

/* It ends by itself, unless its server does not answer or somebody has a copy of the mount. */
static void relay_end(void)
{
    struct timespec step = {.tv_nsec = STEP_NS};
    uint64_t end = now_ms() + RELAY_END_MS;
    int wait_status = 0;

    while (relay != 0) {
        pid_t ended = waitpid(relay, &wait_status, WNOHANG);

        if (ended != 0) {
            mounts_reaped(relay, wait_status);
        } else if (now_ms() < end) {
            nanosleep(&step, NULL);
        } else {
            say("the relay of the shares did not end and is killed");
            kill(relay, SIGKILL);
            relay_failed = true;
            relay = 0; /* collected when it has ended, like anybody's child */
        }
    }
}

int mounts_remove(char *text, size_t size)
{
    int error;

    while (mounted_count > 0) {
        char *path = mounted[mounted_count - 1];

        error = unmount(path, text, size);
        if (error != 0)
            return error;
        free(path);
        mounted_count--;
    }
    if (!base_mounted)
        return 0;
    error = unmount(base, text, size);
    if (error != 0)
        return error;
    base_mounted = false;
    relay_end();
    return 0;
}

pid_t mounts_relay(void)
{
    return relay;
}

void mounts_reaped(pid_t pid, int wait_status)
{
    if (pid != relay)
        return;
    relay = 0;
    relay_failed = wait_status != 0;
}
