/* Frames of the guest protocol: taken apart and put together. Pure: no input, output or memory. */
#ifndef ENCAMP_FRAMES_H
#define ENCAMP_FRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PROTOCOL_VERSION = 1,
    FRAME_MAGIC = 0xEC,
    FRAME_HEADER = 12,
    FRAME_LIMIT = 65536,
    HELLO_LIMIT = 4096,
    FIELD_HEADER = 6,
    NONCE_SIZE = 16,
    MACHINE_SIZE = 16,
    ENTROPY_LEAST = 32,
};

enum frame_type {
    FRAME_HELLO = 1,
    FRAME_WELCOME,
    FRAME_EXEC,
    FRAME_DATA,
    FRAME_END,
    FRAME_CREDIT,
    FRAME_SIGNAL,
    FRAME_RESIZE,
    FRAME_EXIT,
    FRAME_MOUNT,
    FRAME_USER,
    FRAME_NETWORK,
    FRAME_UNMOUNT,
    FRAME_POWEROFF,
    FRAME_DONE,
    FRAME_PING,
    FRAME_PONG,
    FRAME_CALLS,
    FRAME_CALL,
    FRAME_GO,
};

enum field_key {
    KEY_VERSION = 1,
    KEY_NONCE,
    KEY_MACHINE,
    KEY_HOSTNAME,
    KEY_CLOCK,
    KEY_ENTROPY,
    KEY_PROGRAM,
    KEY_UPTIME,
    KEY_ARG,
    KEY_ENV,
    KEY_CWD,
    KEY_UID,
    KEY_GID,
    KEY_GROUPS,
    KEY_TTY,
    KEY_BUILTIN,
    KEY_KIND,
    KEY_VALUE,
    KEY_TEXT,
    KEY_TAG,
    KEY_PATH,
    KEY_READONLY,
    KEY_NAME,
    KEY_GROUP,
    KEY_HOME,
    KEY_SHELL,
    KEY_ADDRESS,
    KEY_PREFIX,
    KEY_GATEWAY,
    KEY_DNS,
    KEY_ERROR,
    KEY_EXACT,
    KEY_UMASK,
    KEY_LIMIT,
    KEY_MERGED,
    KEY_FILE,
    KEY_TEMPORARY,
    KEY_CALLER,
    KEY_TELLING,
    KEY_MAC = 40,
    KEY_HOSTS,
    KEY_GROUP_NAMES,
    KEY_HELD,
};

struct frame {
    uint8_t type;
    uint8_t channel;
    uint32_t stream;
    uint32_t length;
    const uint8_t *payload;
};

enum frame_outcome {
    FRAME_WAIT,  /* more bytes are needed */
    FRAME_READY, /* one frame was taken */
    FRAME_LOST,  /* what came makes no sense; said once, then bytes are skipped up to a HELLO */
};

struct frame_parser {
    bool hunting; /* skipping everything up to the next well-formed HELLO */
};

/* One field of a payload, pointing into it. */
struct field {
    uint16_t key;
    uint32_t length;
    const uint8_t *bytes;
};

struct field_cursor {
    const uint8_t *at;
    size_t left;
};

void frame_parser_reset(struct frame_parser *parser);

/* Look at `count` bytes and take at most one frame from them. Returns how many were used up; the
   frame's payload points into `bytes`. */
size_t frame_take(struct frame_parser *parser, const uint8_t *bytes, size_t count,
                  struct frame *frame, enum frame_outcome *outcome);

void frame_header(uint8_t *to, uint8_t type, uint8_t channel, uint32_t stream, uint32_t length);

/* Next field: 1 taken, 0 at the end, -1 malformed. */
int field_next(struct field_cursor *cursor, struct field *field);
bool fields_well_formed(const uint8_t *bytes, size_t count);
/* The last field with this key. */
bool field_find(const uint8_t *bytes, size_t count, uint16_t key, struct field *field);
bool field_u32(const uint8_t *bytes, size_t count, uint16_t key, uint32_t *value);
bool field_u64(const uint8_t *bytes, size_t count, uint16_t key, uint64_t *value);
/* A string field copied with its zero byte; false if absent, too long, or holding a zero byte. */
bool field_text(const uint8_t *bytes, size_t count, uint16_t key, char *to, size_t size);
/* Is this the payload of a HELLO that can be acted upon? */
bool hello_valid(const uint8_t *bytes, size_t count);

/* Append a field at `at`, which has room; returns the place after it. */
uint8_t *field_put(uint8_t *at, uint16_t key, const void *bytes, uint32_t length);
uint8_t *field_put_u32(uint8_t *at, uint16_t key, uint32_t value);
uint8_t *field_put_u64(uint8_t *at, uint16_t key, uint64_t value);

uint16_t get_u16(const uint8_t *from);
uint32_t get_u32(const uint8_t *from);
uint64_t get_u64(const uint8_t *from);
void put_u16(uint8_t *to, uint16_t value);
void put_u32(uint8_t *to, uint32_t value);
void put_u64(uint8_t *to, uint64_t value);

#endif
