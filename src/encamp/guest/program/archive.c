#define _GNU_SOURCE
#include "archive.h"

#include <string.h>

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
