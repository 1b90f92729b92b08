#define _GNU_SOURCE
#include "archive_write.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "frames.h"

enum { BUFFER = 1 << 18, LINKS_LIMIT = 1 << 16, LINKS_SLOTS = LINKS_LIMIT * 2 };

static uint8_t buffer[BUFFER];
static size_t buffered;
bool archive_broken;

char archive_name[NAME_LIMIT + 1];

/* Names of files that have several, by where they are. */
static struct link {
    dev_t device;
    ino_t inode;
    char *name;
} *links;
static size_t link_count;

static void flush(void)
{
    size_t done = 0;

    while (done < buffered && !archive_broken) {
        ssize_t written = write(1, buffer + done, buffered - done);

        if (written > 0)
            done += (size_t)written;
        else if (errno != EINTR)
            archive_broken = true;
    }
    buffered = 0;
}

void archive_put(const void *bytes, size_t count)
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
    archive_put(bytes, sizeof bytes);
}

void archive_entry(enum entry_kind kind, const struct stat *status, const char *link,
                   size_t link_length, const uint8_t *attributes, size_t attribute_length)
{
    struct entry entry = {.kind = (uint8_t)kind,
                          .name_length = (uint32_t)strlen(archive_name),
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
    archive_put(header, sizeof header);
    archive_put(archive_name, entry.name_length);
    archive_put(link, link_length);
    archive_put(attributes, attribute_length);
}

void archive_problem(const char *sentence)
{
    archive_entry(KIND_ERROR, NULL, sentence, strlen(sentence), NULL, 0);
}

size_t archive_attributes(int fd, bool (*wanted)(const char *key), uint8_t *to)
{
    static char list[65536];
    size_t used = 0;
    ssize_t length = flistxattr(fd, list, sizeof list);

    for (ssize_t at = 0; at < length; at += (ssize_t)strlen(list + at) + 1) {
        const char *key = list + at;
        size_t key_length = strlen(key);

        if (!wanted(key) || used + XATTR_HEADER + key_length + 65536 > XATTR_LIMIT)
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

const char *archive_earlier(const struct stat *status)
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
    if (link_count < LINKS_LIMIT && (links[slot].name = strdup(archive_name)) != NULL) {
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

void archive_content(int fd, const struct stat *status, bool exact)
{
    bool sparse = (off_t)status->st_blocks * 512 < status->st_size;
    off_t at = 0, data_end = 0;
    int error = 0;

    while (!archive_broken) {
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
        off_t limit = sparse ? data_end - at : 0;
        if (exact && at >= status->st_size)
            break;
        if (exact && (limit == 0 || limit > status->st_size - at))
            limit = status->st_size - at;
        ssize_t count = put_chunk(fd, at, limit);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            error = errno;
        if (count <= 0)
            break;
        at += count;
    }
    if (exact && error == 0)
        put_hole(status->st_size - at);
    put_number(0);
    put_number((uint32_t)error);
}

void archive_begin(void)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max < 4096 ? files.rlim_max : 4096;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    archive_put(ARCHIVE_START, ARCHIVE_START_SIZE);
}

int archive_end(void)
{
    archive_name[0] = 0;
    archive_entry(KIND_END, NULL, NULL, 0, NULL, 0);
    flush();
    return archive_broken ? 1 : 0;
}

void archive_below(int fd, unsigned depth,
                   void (*pack)(int directory, const char *name, unsigned depth))
{
    size_t length = strlen(archive_name), start = length + (length > 0);
    DIR *all = fdopendir(fd);
    struct dirent *entry;

    if (all == NULL) {
        close(fd);
        archive_problem("the machine has no memory left");
        return;
    }
    errno = 0;
    while (!archive_broken && (entry = readdir(all)) != NULL) {
        size_t more = strlen(entry->d_name);

        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            if (start + more > NAME_LIMIT - 1 || depth + 1 >= DEPTH_LIMIT) {
                archive_problem("there is too much below this directory");
            } else {
                archive_name[length] = '/';
                memcpy(archive_name + start, entry->d_name, more + 1);
                pack(dirfd(all), entry->d_name, depth + 1);
                archive_name[length] = 0;
            }
        }
        errno = 0;
    }
    if (errno != 0)
        archive_problem(strerror(errno));
    closedir(all);
}
