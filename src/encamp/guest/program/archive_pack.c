#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "archive.h"
#include "frames.h"

enum { BUFFER = 1 << 18, LINKS_LIMIT = 1 << 16, LINKS_SLOTS = LINKS_LIMIT * 2 };

static uint8_t buffer[BUFFER];
static size_t buffered;
static bool broken; /* nobody reads the archive any more */

static char name[NAME_LIMIT + 1]; /* of the entry being packed, grown and cut by the walk */

/* Names of files that have several, by where they are. When it is full, further links are packed
   as files of their own: larger, but right. */
static struct link {
    dev_t device;
    ino_t inode;
    char *name;
} *links;
static size_t link_count;

static void flush(void)
{
    size_t done = 0;

    while (done < buffered && !broken) {
        ssize_t written = write(1, buffer + done, buffered - done);

        if (written > 0)
            done += (size_t)written;
        else if (errno != EINTR)
            broken = true;
    }
    buffered = 0;
}

static void put(const void *bytes, size_t count)
{
    const uint8_t *from = bytes;

    while (count > 0) {
        size_t part = BUFFER - buffered < count ? BUFFER - buffered : count;

        memcpy(buffer + buffered, from, part);
        buffered += part;
        from += part;
        count -= part;
        if (buffered == BUFFER)
            flush();
    }
}

static void put_number(uint32_t value)
{
    uint8_t bytes[4];

    put_u32(bytes, value);
    put(bytes, sizeof bytes);
}

static void put_entry(enum entry_kind kind, const struct stat *status, const char *link,
                      size_t link_length, const uint8_t *attributes, size_t attribute_length)
{
    struct entry entry = {.kind = (uint8_t)kind,
                          .name_length = (uint32_t)strlen(name),
                          .link_length = (uint32_t)link_length,
                          .xattr_length = (uint32_t)attribute_length};
    uint8_t header[ENTRY_HEADER];

    if (status != NULL) {
        entry.mode = status->st_mode & 07777;
        entry.uid = status->st_uid;
        entry.gid = status->st_gid;
        entry.mtime = status->st_mtim.tv_sec;
        entry.mtime_ns = (uint32_t)status->st_mtim.tv_nsec;
    }
    entry_encode(&entry, header);
    put(header, sizeof header);
    put(name, entry.name_length);
    put(link, link_length);
    put(attributes, attribute_length);
}

static void put_problem(const char *sentence)
{
    put_entry(KIND_ERROR, NULL, sentence, strlen(sentence), NULL, 0);
}

/* The user's own extended attributes; those that do not fit are left out. */
static size_t read_attributes(int fd, uint8_t *to)
{
    static char list[65536];
    size_t used = 0;
    ssize_t length = flistxattr(fd, list, sizeof list);

    for (ssize_t at = 0; at < length; at += (ssize_t)strlen(list + at) + 1) {
        const char *key = list + at;
        size_t key_length = strlen(key);

        if (strncmp(key, "user.", 5) != 0 ||
            used + XATTR_HEADER + key_length + 65536 > XATTR_LIMIT)
            continue;
        ssize_t value = fgetxattr(fd, key, to + used + XATTR_HEADER + key_length, 65536);
        if (value < 0)
            continue;
        put_u16(to + used, (uint16_t)key_length);
        put_u32(to + used + 2, (uint32_t)value);
        memcpy(to + used + XATTR_HEADER, key, key_length);
        used += XATTR_HEADER + key_length + (size_t)value;
    }
    return used;
}

/* The name under which this file was packed before, or NULL; then it is remembered. */
static const char *earlier_name(const struct stat *status)
{
    if (links == NULL)
        links = calloc(LINKS_SLOTS, sizeof *links);
    if (links == NULL)
        return NULL;
    size_t slot = (size_t)(status->st_ino * 0x9E3779B97F4A7C15ULL >> 40) % LINKS_SLOTS;
    while (links[slot].name != NULL) {
        if (links[slot].inode == status->st_ino && links[slot].device == status->st_dev)
            return links[slot].name;
        slot = (slot + 1) % LINKS_SLOTS;
    }
    if (link_count < LINKS_LIMIT && (links[slot].name = strdup(name)) != NULL) {
        links[slot].device = status->st_dev;
        links[slot].inode = status->st_ino;
        link_count++;
    }
    return NULL;
}

/* Read into the buffer itself, behind room for the chunk's length. */
static ssize_t put_chunk(int fd, off_t at, off_t limit)
{
    if (BUFFER - buffered < BUFFER / 2)
        flush();
    size_t room = BUFFER - buffered - 4;
    if (limit > 0 && (off_t)room > limit)
        room = (size_t)limit;
    ssize_t count = pread(fd, buffer + buffered + 4, room, at);
    if (count > 0) {
        put_u32(buffer + buffered, (uint32_t)count);
        buffered += 4 + (size_t)count;
    }
    return count;
}

static void put_hole(off_t length)
{
    while (length > 0) {
        uint32_t part = length > 0x40000000 ? 0x40000000 : (uint32_t)length;

        put_number(CHUNK_HOLE | part);
        length -= part;
    }
}

static void put_content(int fd, const struct stat *status)
{
    bool sparse = (off_t)status->st_blocks * 512 < status->st_size;
    off_t at = 0, data_end = 0;
    int error = 0;

    while (!broken) {
        if (sparse && at >= data_end && at < status->st_size) {
            off_t data = lseek(fd, at, SEEK_DATA);

            if (data < 0 && errno != ENXIO) {
                sparse = false; /* this file system cannot tell */
                continue;
            }
            if (data < 0 || data > status->st_size)
                data = status->st_size;
            put_hole(data - at);
            at = data;
            data_end = lseek(fd, at, SEEK_HOLE);
            if (data_end <= at)
                data_end = at;
        }
        ssize_t count = put_chunk(fd, at, sparse ? data_end - at : 0);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            error = errno;
        if (count <= 0)
            break;
        at += count;
    }
    put_number(0);
    put_number((uint32_t)error);
}

static void pack(int directory, const char *path, bool follow, unsigned depth);

static void pack_below(int fd, unsigned depth)
{
    size_t length = strlen(name);
    DIR *all = fdopendir(fd);
    struct dirent *entry;

    if (all == NULL) {
        close(fd);
        put_problem("the machine has no memory left");
        return;
    }
    errno = 0;
    while (!broken && (entry = readdir(all)) != NULL) {
        size_t more = strlen(entry->d_name);

        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            if (length + 1 + more > NAME_LIMIT - 1 || depth + 1 >= DEPTH_LIMIT) {
                put_problem("there is too much below this directory");
            } else {
                name[length] = '/';
                memcpy(name + length + 1, entry->d_name, more + 1);
                pack(dirfd(all), entry->d_name, false, depth + 1);
                name[length] = 0;
            }
        }
        errno = 0;
    }
    if (errno != 0)
        put_problem(strerror(errno));
    closedir(all);
}

static void pack_opened(int fd, const struct stat *status, unsigned depth)
{
    static uint8_t attributes[XATTR_LIMIT];
    const char *earlier = NULL;

    if (S_ISREG(status->st_mode) && status->st_nlink > 1)
        earlier = earlier_name(status);
    if (earlier != NULL) {
        put_entry(KIND_HARDLINK, status, earlier, strlen(earlier), NULL, 0);
        close(fd);
        return;
    }
    size_t count = read_attributes(fd, attributes);
    put_entry(S_ISDIR(status->st_mode) ? KIND_DIRECTORY : KIND_FILE, status, NULL, 0, attributes,
              count);
    if (S_ISDIR(status->st_mode)) {
        pack_below(fd, depth);
    } else {
        put_content(fd, status);
        close(fd);
    }
}

static void pack(int directory, const char *path, bool follow, unsigned depth)
{
    struct stat status;

    if (fstatat(directory, path, &status, follow ? 0 : AT_SYMLINK_NOFOLLOW) < 0) {
        put_problem(strerror(errno));
    } else if (S_ISLNK(status.st_mode)) {
        char target[PATH_MAX + 1];
        ssize_t length = readlinkat(directory, path, target, sizeof target);

        if (length < 0)
            put_problem(strerror(errno));
        else
            put_entry(KIND_SYMLINK, &status, target, (size_t)length, NULL, 0);
    } else if (S_ISFIFO(status.st_mode)) {
        put_entry(KIND_FIFO, &status, NULL, 0, NULL, 0);
    } else if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) {
        put_problem("a socket or device cannot be copied");
    } else {
        /* never wait: what was a file may have become a fifo since */
        int fd = openat(directory, path,
                        O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | (follow ? 0 : O_NOFOLLOW));

        if (fd < 0) {
            put_problem(strerror(errno));
        } else if (fstat(fd, &status) < 0 || !(S_ISREG(status.st_mode) || S_ISDIR(status.st_mode))) {
            put_problem("it changed while it was being copied");
            close(fd);
        } else {
            pack_opened(fd, &status, depth);
        }
    }
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
        snprintf(name, sizeof name, "%s", path);
        put_problem("the root directory has no name to be copied under");
        return;
    }
    snprintf(name, sizeof name, "%s", last);
    pack(AT_FDCWD, path, access(path, F_OK) == 0, 0);
}

int archive_pack(const char *base, char **patterns)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max < 4096 ? files.rlim_max : 4096;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    put(ARCHIVE_START, ARCHIVE_START_SIZE);
    int error = chdir(base) < 0 ? errno : 0;
    for (; *patterns != NULL && !broken; patterns++) {
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
            snprintf(name, sizeof name, "%s", *patterns);
            if (outcome == GLOB_NOMATCH)
                put_entry(KIND_MISSING, NULL, NULL, 0, NULL, 0);
            else
                put_problem("the machine has no memory left");
            continue;
        }
        for (size_t i = 0; i < found.gl_pathc; i++)
            pack_match(found.gl_pathv[i]);
        globfree(&found);
    }
    name[0] = 0;
    put_entry(KIND_END, NULL, NULL, 0, NULL, 0);
    flush();
    return broken ? 1 : 0;
}
