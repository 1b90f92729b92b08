#define _GNU_SOURCE
#include "boot.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "console.h"
#include "files.h"
#include "network.h"
#include "power.h"

enum {
    LINE_LIMIT = 4096,
    LIST_LIMIT = 65536,
    LAYERS_LIMIT = 256,
    DEVICE_WAIT_MS = 10000,
    STEP_NS = 2000000
};

static char command_line[LINE_LIMIT];

/* The value of `encamp.NAME=` on the kernel's command line, or NULL. */
static const char *option(const char *name, char *to, size_t size)
{
    char prefix[64];
    size_t length = (size_t)snprintf(prefix, sizeof prefix, "encamp.%s=", name);

    for (const char *word = command_line; *word != 0;) {
        size_t end = strcspn(word, " \n");

        if (end > length && end - length < size && strncmp(word, prefix, length) == 0) {
            memcpy(to, word + length, end - length);
            to[end - length] = 0;
            return to;
        }
        word += end + strspn(word + end, " \n");
    }
    return NULL;
}

static void must_mount(const char *what, const char *where, const char *type, unsigned long flags,
                       const char *options)
{
    int error = directory_make(where, 0755);

    if (error == 0 && mount(what, where, type, flags, options) < 0)
        error = errno;
    if (error != 0)
        fatal("%s (%s) could not be mounted on %s: %s", what, type, where, strerror(error));
}

static void load_modules(void)
{
    static char list[LIST_LIMIT];
    char *rest = list;

    if (!file_read("/modules/order", list, sizeof list)) {
        if (access("/modules/order", F_OK) == 0)
            fatal("/modules/order cannot be read or is too long");
        return; /* a kernel with everything built in */
    }
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        char path[512];

        if (*line == 0)
            continue;
        snprintf(path, sizeof path, "/modules/%s", line);
        int module = open(path, O_RDONLY | O_CLOEXEC);
        if (module < 0 || (syscall(SYS_finit_module, module, "", 0) < 0 && errno != EEXIST))
            fatal("module %s could not be loaded: %s", line, strerror(errno));
        close(module);
    }
}

static void wait_for(const char *path)
{
    uint64_t end = now_ms() + DEVICE_WAIT_MS;
    struct timespec step = {.tv_nsec = STEP_NS};

    while (access(path, F_OK) < 0) {
        if (now_ms() > end)
            fatal("%s did not appear", path);
        nanosleep(&step, NULL);
    }
}

static void device_path(const char *name, char *to, size_t size)
{
    snprintf(to, size, "/dev/%s", name);
    wait_for(to);
}

/* Mount the image's layers, given lowest first, and list them as overlayfs wants: highest first. */
static void mount_layers(char *names, char *list, size_t size)
{
    size_t count = 0, used = 0;

    list[0] = 0;
    for (char *name; (name = strsep(&names, ",")) != NULL; count++) {
        char device[96], where[32];

        device_path(name, device, sizeof device);
        size_t length = (size_t)snprintf(where, sizeof where, "/lower/%zu", count);
        must_mount(device, where, "squashfs", MS_RDONLY, NULL);
        if (used + length + 2 > size)
            fatal("the image has too many layers");
        memmove(list + length + 1, list, used + 1);
        memcpy(list, where, length);
        list[length] = used > 0 ? ':' : 0;
        used = strlen(list);
    }
}

/* The image below, what the machine writes above. */
static void stack_layers(void)
{
    char word[LAYERS_LIMIT], layers[LAYERS_LIMIT], device[LAYERS_LIMIT + 8];
    char options[LAYERS_LIMIT + 128];

    if (option("root", word, sizeof word) == NULL)
        fatal("the kernel's command line has no encamp.root");
    mount_layers(word, layers, sizeof layers);

    if (option("disk", word, sizeof word) != NULL) {
        device_path(word, device, sizeof device);
        must_mount(device, "/writable", "ext4", MS_NOATIME, NULL);
    } else {
        if (option("scratch", word, sizeof word) == NULL)
            strcpy(word, "50%");
        snprintf(options, sizeof options, "mode=0755,size=%.32s", word);
        must_mount("writable", "/writable", "tmpfs", 0, options);
    }
    writable_layer = open("/writable", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = directory_make("/writable/upper", 0755);
    if (error == 0)
        error = directory_make("/writable/work", 0755);
    if (error != 0)
        fatal("the writable layer cannot be written: %s", strerror(error));
    /* saved as an image, the upper layer must not refer to what is below it here */
    snprintf(options, sizeof options,
             "lowerdir=%s,upperdir=/writable/upper,workdir=/writable/work,redirect_dir=off,"
             "metacopy=off,index=off",
             layers);
    must_mount("encamp", "/machine", "overlay", 0, options);
}

/* Empty the initramfs, whose files would stay in memory for ever. Mounts are left alone. */
static void remove_all(int directory, dev_t device)
{
    DIR *all = fdopendir(directory);
    struct dirent *entry;

    if (all == NULL)
        return;
    while ((entry = readdir(all)) != NULL) {
        struct stat found;

        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            fstatat(dirfd(all), entry->d_name, &found, AT_SYMLINK_NOFOLLOW) < 0 ||
            found.st_dev != device)
            continue;
        if (S_ISDIR(found.st_mode)) {
            int below = openat(dirfd(all), entry->d_name,
                               O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

            if (below >= 0)
                remove_all(below, device);
            unlinkat(dirfd(all), entry->d_name, AT_REMOVEDIR);
        } else {
            unlinkat(dirfd(all), entry->d_name, 0);
        }
    }
    closedir(all);
}

static void switch_root(void)
{
    static const char *const kept[][2] = {
        {"/dev", "/machine/dev"}, {"/proc", "/machine/proc"}, {"/sys", "/machine/sys"}};
    struct stat root;
    int old = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        int error = directory_make(kept[i][1], 0755);

        if (error == 0 && mount(kept[i][0], kept[i][1], NULL, MS_MOVE, NULL) < 0)
            error = errno;
        if (error != 0)
            fatal("%s could not be moved: %s", kept[i][0], strerror(error));
    }
    if (chdir("/machine") < 0)
        fatal("the machine's root cannot be entered: %s", strerror(errno));
    if (old >= 0 && fstat(old, &root) == 0)
        remove_all(old, root.st_dev);
    if (mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 || chdir("/") < 0)
        fatal("the machine's root could not be taken on: %s", strerror(errno));
}

static void furnish(void)
{
    struct stat found;

    must_mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC,
               "gid=5,mode=620,ptmxmode=666");
    must_mount("shm", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777");
    must_mount("run", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755");
    if (stat("/tmp", &found) < 0)
        must_mount("tmp", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777");
    /* a kernel without them is still good for jobs */
    mount("cgroup2", "/sys/fs/cgroup", "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    if (symlink("/proc/self/fd", "/dev/fd") < 0 || symlink("/proc/self/fd/0", "/dev/stdin") < 0 ||
        symlink("/proc/self/fd/1", "/dev/stdout") < 0 ||
        symlink("/proc/self/fd/2", "/dev/stderr") < 0)
        say("a link in /dev could not be made: %s", strerror(errno));
    network_loopback();

    static const char passwd[] = "root:*:0:0:root:/root:/bin/sh\n", group[] = "root:*:0:\n";
    directory_make("/etc", 0755);
    if (access("/etc/passwd", F_OK) < 0)
        file_replace("/etc/passwd", passwd, sizeof passwd - 1, 0644);
    if (access("/etc/group", F_OK) < 0)
        file_replace("/etc/group", group, sizeof group - 1, 0644);
}

/* The image brings its own init: it becomes PID 1, and this program goes on as its child. */
static void hand_over(const char *init)
{
    pid_t child = fork();

    if (child < 0)
        fatal("no process could be made: %s", strerror(errno));
    if (child == 0) {
        setsid();
        return;
    }
    char *const argv[] = {(char *)init, NULL};
    char *const envp[] = {"HOME=/", "TERM=linux", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", NULL};
    execve(init, argv, envp);
    fatal("%s could not be run: %s", init, strerror(errno));
}

void boot(void)
{
    char init[256];

    umask(022);
    must_mount("devtmpfs", "/dev", "devtmpfs", MS_NOSUID, "mode=0755");
    must_mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    must_mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    if (!file_read("/proc/cmdline", command_line, sizeof command_line))
        fatal("the kernel's command line cannot be read");
    load_modules();
    stack_layers();
    switch_root();
    furnish();
    if (option("init", init, sizeof init) != NULL)
        hand_over(init);
}
