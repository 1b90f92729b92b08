/* The archive that carries files between host and machine: `pack` writes it, `unpack` reads it. */
#ifndef ENCAMP_ARCHIVE_H
#define ENCAMP_ARCHIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARCHIVE_START "ENCAMP1\n"

enum {
    ARCHIVE_START_SIZE = 8,
    ENTRY_HEADER = 37,
    NAME_LIMIT = 65536,   /* of a name, and of a link's text */
    XATTR_LIMIT = 262144, /* of all extended attributes of one file */
    XATTR_HEADER = 6,
    CHUNK_LIMIT = 1 << 20,
    DEPTH_LIMIT = 256, /* directories inside each other; each is held open */
};

/* A chunk's length with this bit is a hole of that many zeros, with no bytes following. */
#define CHUNK_HOLE 0x80000000U

enum entry_kind {
    KIND_DIRECTORY = 'd',
    KIND_FILE = 'f',
    KIND_SYMLINK = 'l',
    KIND_HARDLINK = 'h',
    KIND_FIFO = 'p',
    KIND_CHARACTER = 'c', /* devices are only in what a machine changed; never unpacked */
    KIND_BLOCK = 'b',
    KIND_MISSING = 'm',
    KIND_ERROR = 'x',
    KIND_END = 'e',
};

struct entry {
    uint8_t kind;
    uint32_t mode;
    uint32_t uid;
    uint32_t gid;
    int64_t mtime;
    uint32_t mtime_ns;
    uint32_t name_length;
    uint32_t link_length;
    uint32_t xattr_length;
};

void entry_encode(const struct entry *entry, uint8_t to[ENTRY_HEADER]);
/* False: no archive has such an entry. */
bool entry_decode(struct entry *entry, const uint8_t from[ENTRY_HEADER]);
/* Relative, no empty, `.` or `..` component, no zero byte. */
bool entry_name_valid(const char *name, size_t length);

/* Where an archive comes from. `fill` returns what read(2) would. */
struct source {
    long (*fill)(struct source *source, void *to, size_t count);
    int fd;
    const uint8_t *bytes;
    size_t left;
};

/* Each returns its command's exit code. */
int archive_pack(const char *base, char **patterns);
/* What the machine changed: all below the directory with this descriptor, but for the `left_out`
   paths; of those that end in a slash the directory itself stays. */
int archive_changes(int layer, char **left_out);
int archive_unpack(const char *destination, struct source *source);
/* All that is unpacked shall belong to these, given by name or number, whoever the archive says.
   False: the machine knows no such user or group; that was said on stderr. */
bool archive_give_to(const char *owner, const char *group);

#endif
