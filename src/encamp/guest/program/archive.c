#define _GNU_SOURCE
#include "archive.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "frames.h"

void entry_encode(const struct entry *entry, uint8_t to[ENTRY_HEADER])
{
    to[0] = entry->kind;
    put_u32(to + 1, entry->mode);
    put_u32(to + 5, entry->uid);
    put_u32(to + 9, entry->gid);
    put_u64(to + 13, (uint64_t)entry->mtime);
    put_u32(to + 21, entry->mtime_ns);
    put_u32(to + 25, entry->name_length);
    put_u32(to + 29, entry->link_length);
    put_u32(to + 33, entry->xattr_length);
}

bool entry_decode(struct entry *entry, const uint8_t from[ENTRY_HEADER])
{
    *entry = (struct entry){
        .kind = from[0],
        .mode = get_u32(from + 1) & 07777,
        .uid = get_u32(from + 5),
        .gid = get_u32(from + 9),
        .mtime = (int64_t)get_u64(from + 13),
        .mtime_ns = get_u32(from + 21),
        .name_length = get_u32(from + 25),
        .link_length = get_u32(from + 29),
        .xattr_length = get_u32(from + 33),
    };
    return entry->kind != 0 && strchr("dflhpmxe", entry->kind) != NULL &&
           entry->mtime_ns < 1000000000 && entry->name_length <= NAME_LIMIT &&
           entry->link_length <= NAME_LIMIT && entry->xattr_length <= XATTR_LIMIT;
}

bool entry_name_valid(const char *name, size_t length)
{
    size_t start = 0;

    if (length == 0 || memchr(name, 0, length) != NULL)
        return false;
    for (size_t at = 0; at <= length; at++) {
        if (at < length && name[at] != '/')
            continue;
        size_t size = at - start;
        if (size == 0 || (size == 1 && name[start] == '.') ||
            (size == 2 && name[start] == '.' && name[start + 1] == '.'))
            return false;
        start = at + 1;
    }
    return true;
}

bool archive_knows(const char *name)
{
    return strcmp(name, "pack") == 0 || strcmp(name, "unpack") == 0 ||
           strcmp(name, "is-directory") == 0;
}

static long fill_from_fd(struct source *source, void *to, size_t count)
{
    return read(source->fd, to, count);
}

static int is_directory(const char *path)
{
    struct stat found;

    return stat(path, &found) < 0 || !S_ISDIR(found.st_mode);
}

int archive_main(int argc, char **argv)
{
    if (argc >= 3 && strcmp(argv[0], "pack") == 0)
        return archive_pack(argv[1], argv + 2);
    if (argc == 2 && strcmp(argv[0], "unpack") == 0) {
        struct source source = {.fill = fill_from_fd, .fd = 0};

        return archive_unpack(argv[1], &source);
    }
    if (argc == 2 && strcmp(argv[0], "is-directory") == 0)
        return is_directory(argv[1]);
    fprintf(stderr, "usage: pack BASE PATTERN... | unpack DEST | is-directory PATH\n");
    return 64;
}
