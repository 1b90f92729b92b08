#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "archive.h"
#include "archive_tree.h"
#include "frames.h"

enum { BUFFER = 1 << 16, TEMPORARY = 40 };

/* One archive at a time: a process unpacks one and ends. */
static struct source *source;
static uint8_t buffer[BUFFER];
static size_t buffer_start, buffer_end;
static char name[NAME_LIMIT + 1], link_text[NAME_LIMIT + 1];
static uint8_t attributes[XATTR_LIMIT];
static bool failed;
static unsigned serial;
static bool given; /* to `owner` and `group`, whoever the archive says */
static uint32_t owner, group;

static void complain(const char *sentence)
{
    fprintf(stderr, "%s: %s\n", name, sentence);
    failed = true;
}

static bool fill(void)
{
    for (;;) {
        long count = source->fill(source, buffer, sizeof buffer);

        if (count > 0) {
            buffer_start = 0;
            buffer_end = (size_t)count;
            return true;
        }
        if (count == 0 || errno != EINTR)
            return false;
    }
}

/* At most `count` bytes where they lie; `*bytes` is good until the next call. 0: cut short. */
static size_t take_some(const uint8_t **bytes, size_t count)
{
    if (buffer_start == buffer_end && !fill())
        return 0;
    size_t there = buffer_end - buffer_start;
    *bytes = buffer + buffer_start;
    if (count > there)
        count = there;
    buffer_start += count;
    return count;
}

static bool take(void *to, size_t count)
{
    uint8_t *at = to;

    while (count > 0) {
        const uint8_t *bytes;
        size_t part = take_some(&bytes, count);

        if (part == 0)
            return false;
        memcpy(at, bytes, part);
        at += part;
        count -= part;
    }
    return true;
}

static bool take_number(uint32_t *value)
{
    uint8_t bytes[4];

    if (!take(bytes, sizeof bytes))
        return false;
    *value = get_u32(bytes);
    return true;
}

/* Everything is made under a name nobody waits for and renamed when it is whole. */
static void temporary_name(char to[TEMPORARY])
{
    snprintf(to, TEMPORARY, ".encamp-%d-%u", (int)getpid(), ++serial);
}

/* Without their owner, setuid and setgid would mean something else. */
static uint32_t permitted(const struct entry *entry, bool owned)
{
    return owned ? entry->mode : entry->mode & 01777;
}

/* Only root gives files away, and not on every file system. */
static bool give_away(int directory, const char *path, int flags, const struct entry *entry)
{
    return geteuid() == 0 && fchownat(directory, path, entry->uid, entry->gid, flags) == 0;
}

static void apply_attributes(int fd, size_t length)
{
    size_t at = 0;

    while (length - at >= XATTR_HEADER) {
        size_t key_length = get_u16(attributes + at);
        size_t value_length = get_u32(attributes + at + 2);
        char key[256];

        at += XATTR_HEADER;
        if (key_length > length - at || value_length > length - at - key_length)
            break;
        if (key_length < sizeof key && key_length > 5 &&
            memcmp(attributes + at, "user.", 5) == 0) {
            memcpy(key, attributes + at, key_length);
            key[key_length] = 0;
            /* a file system without them is no reason to lose the file */
            if (fsetxattr(fd, key, attributes + at + key_length, value_length, 0) < 0 &&
                errno != ENOTSUP)
                complain(strerror(errno));
        }
        at += key_length + value_length;
    }
    if (at != length)
        complain("its extended attributes are damaged");
}

static int dress(int fd, const struct entry *entry)
{
    struct timespec mtime = {.tv_sec = entry->mtime, .tv_nsec = entry->mtime_ns};
    struct timespec times[2] = {mtime, mtime};

    bool owned = give_away(fd, "", AT_EMPTY_PATH, entry);
    apply_attributes(fd, entry->xattr_length);
    if (fchmod(fd, permitted(entry, owned)) < 0 || futimens(fd, times) < 0)
        return errno;
    return 0;
}

static int write_at(int fd, const uint8_t *bytes, size_t count, off_t at)
{
    while (count > 0) {
        ssize_t written = pwrite(fd, bytes, count, at);

        if (written < 0 && errno != EINTR)
            return errno;
        if (written > 0) {
            bytes += written;
            count -= (size_t)written;
            at += written;
        }
    }
    return 0;
}

/* Read a file's chunks to their end, also when they cannot be written any more: the next entry
   lies behind them. False: the archive is damaged. */
static bool take_content(int fd, int *error)
{
    off_t at = 0;
    uint32_t length, sender;

    for (;;) {
        if (!take_number(&length))
            return false;
        if (length == 0)
            break;
        if (length & CHUNK_HOLE) {
            if (__builtin_add_overflow(at, (off_t)(length & ~CHUNK_HOLE), &at))
                return false;
            continue;
        }
        if (length > CHUNK_LIMIT)
            return false;
        while (length > 0) {
            const uint8_t *bytes;
            size_t count = take_some(&bytes, length);

            if (count == 0)
                return false;
            if (*error == 0)
                *error = write_at(fd, bytes, count, at);
            if (__builtin_add_overflow(at, (off_t)count, &at))
                return false;
            length -= (uint32_t)count;
        }
    }
    if (!take_number(&sender))
        return false;
    if (*error == 0 && sender != 0)
        *error = sender < 4096 ? (int)sender : EIO;
    if (*error == 0 && ftruncate(fd, at) < 0)
        *error = errno;
    return true;
}

static bool unpack_file(const struct entry *entry, bool acceptable)
{
    char temporary[TEMPORARY];
    const char *last = NULL;
    int directory = acceptable ? tree_enter(name, &last) : -1;
    int error = acceptable && directory < 0 ? errno : 0;
    int fd = -1;

    temporary_name(temporary);
    if (directory >= 0) {
        fd = openat(directory, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                    0600);
        error = fd < 0 ? errno : 0;
    }
    int outcome = fd < 0 ? EBADF : 0;
    bool sound = take_content(fd, &outcome);
    if (fd >= 0) {
        error = sound ? outcome : EIO;
        if (error == 0)
            error = dress(fd, entry);
        if (close(fd) < 0 && error == 0)
            error = errno;
        if (error == 0 && renameat(directory, temporary, directory, last) < 0)
            error = errno;
        if (error != 0)
            unlinkat(directory, temporary, 0);
    }
    if (error != 0 && sound)
        complain(strerror(error));
    return sound;
}

/* A symbolic link, a hard link or a fifo. */
static int make_special(const struct entry *entry)
{
    struct timespec mtime = {.tv_sec = entry->mtime, .tv_nsec = entry->mtime_ns};
    struct timespec times[2] = {mtime, mtime};
    char temporary[TEMPORARY];
    const char *last, *target;
    int made = -1;
    int directory = tree_enter(name, &last);

    if (directory < 0)
        return errno;
    temporary_name(temporary);
    if (entry->kind == KIND_SYMLINK) {
        made = symlinkat(link_text, directory, temporary);
    } else if (entry->kind == KIND_FIFO) {
        made = mkfifoat(directory, temporary, 0600);
        if (made == 0)
            made = fchmodat(directory, temporary, entry->mode & 0777, 0);
    } else {
        struct stat status;
        int from = tree_peek(link_text, &target);

        if (from < 0)
            return errno;
        if (fstatat(from, target, &status, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(status.st_mode))
            errno = EPERM;
        else
            made = linkat(from, target, directory, temporary, 0);
        int error = errno;
        close(from);
        errno = error;
    }
    int error = made < 0 ? errno : 0;
    if (error == 0 && entry->kind != KIND_HARDLINK) {
        give_away(directory, temporary, AT_SYMLINK_NOFOLLOW, entry);
        if (utimensat(directory, temporary, times, AT_SYMLINK_NOFOLLOW) < 0)
            error = errno;
    }
    if (error == 0 && renameat(directory, temporary, directory, last) < 0)
        error = errno;
    /* also after success: renaming one of two links to the same file does nothing at all */
    unlinkat(directory, temporary, 0);
    return error;
}

static int make_directory(const struct entry *entry)
{
    struct entry allowed = *entry;

    allowed.mode = permitted(entry, geteuid() == 0);
    int fd = tree_make(name, &allowed);
    if (fd < 0)
        return errno;
    give_away(fd, "", AT_EMPTY_PATH, entry);
    apply_attributes(fd, entry->xattr_length);
    return 0;
}

/* 1: go on, 0: the end, -1: damaged. */
static int unpack_entry(void)
{
    uint8_t header[ENTRY_HEADER];
    struct entry entry;
    int error = 0;

    if (!take(header, sizeof header) || !entry_decode(&entry, header) ||
        !take(name, entry.name_length) || !take(link_text, entry.link_length) ||
        !take(attributes, entry.xattr_length))
        return -1;
    if (given) {
        entry.uid = owner;
        entry.gid = group;
    }
    name[entry.name_length] = 0;
    link_text[entry.link_length] = 0;
    if (entry.kind == KIND_END)
        return 0;
    if (entry.kind == KIND_MISSING) {
        complain("nothing of that name is there");
        return 1;
    }
    if (entry.kind == KIND_ERROR) {
        complain(link_text);
        return 1;
    }
    bool acceptable = entry_name_valid(name, entry.name_length) &&
                      memchr(link_text, 0, entry.link_length) == NULL &&
                      (entry.kind != KIND_HARDLINK ||
                       entry_name_valid(link_text, entry.link_length));
    if (!acceptable)
        complain("this name is refused");
    if (entry.kind == KIND_FILE)
        return unpack_file(&entry, acceptable) ? 1 : -1;
    if (acceptable)
        error = entry.kind == KIND_DIRECTORY ? make_directory(&entry) : make_special(&entry);
    if (error != 0)
        complain(strerror(error));
    return 1;
}

static bool number_of(const char *word, uint32_t *number)
{
    char *end;
    unsigned long value = strtoul(word, &end, 10);

    *number = (uint32_t)value;
    return *word >= '0' && *word <= '9' && *end == 0 && value < UINT32_MAX;
}

bool archive_give_to(const char *owner_word, const char *group_word)
{
    struct passwd *user = NULL;
    struct group *members = NULL;
    bool known = number_of(owner_word, &owner) || (user = getpwnam(owner_word)) != NULL;

    if (user != NULL)
        owner = user->pw_uid;
    if (!known) {
        fprintf(stderr, "the machine knows no user '%s'\n", owner_word);
        return false;
    }
    known = number_of(group_word, &group) || (members = getgrnam(group_word)) != NULL;
    if (members != NULL)
        group = members->gr_gid;
    if (!known)
        fprintf(stderr, "the machine knows no group '%s'\n", group_word);
    given = known;
    return known;
}

int archive_unpack(const char *destination, struct source *from)
{
    char start[ARCHIVE_START_SIZE];
    struct rlimit files;
    int outcome = -1;

    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max < 4096 ? files.rlim_max : 4096;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    source = from;
    buffer_start = buffer_end = 0;
    failed = false;
    int error = tree_begin(destination);
    if (error != 0) {
        fprintf(stderr, "%s: %s\n", destination, strerror(error));
        return 1;
    }
    if (take(start, sizeof start) && memcmp(start, ARCHIVE_START, sizeof start) == 0) {
        while ((outcome = unpack_entry()) > 0)
            ;
    }
    error = tree_end();
    if (error != 0)
        fprintf(stderr, "%s: %s\n", destination, strerror(error));
    if (outcome < 0)
        fprintf(stderr, "the archive is damaged or cut short\n");
    return outcome < 0 || failed || error != 0 ? 1 : 0;
}
