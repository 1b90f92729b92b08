#include "frames.h"

#include <string.h>

uint16_t get_u16(const uint8_t *from)
{
    return (uint16_t)(from[0] | from[1] << 8);
}

uint32_t get_u32(const uint8_t *from)
{
    return (uint32_t)get_u16(from) | (uint32_t)get_u16(from + 2) << 16;
}

uint64_t get_u64(const uint8_t *from)
{
    return (uint64_t)get_u32(from) | (uint64_t)get_u32(from + 4) << 32;
}

void put_u16(uint8_t *to, uint16_t value)
{
    to[0] = (uint8_t)value;
    to[1] = (uint8_t)(value >> 8);
}

void put_u32(uint8_t *to, uint32_t value)
{
    put_u16(to, (uint16_t)value);
    put_u16(to + 2, (uint16_t)(value >> 16));
}

void put_u64(uint8_t *to, uint64_t value)
{
    put_u32(to, (uint32_t)value);
    put_u32(to + 4, (uint32_t)(value >> 32));
}

void frame_parser_reset(struct frame_parser *parser)
{
    parser->hunting = true;
}

/* Only the host's types: whatever else arrives means that the two sides lost each other. */
static bool type_expected(uint8_t type)
{
    switch (type) {
    case FRAME_HELLO:
    case FRAME_EXEC:
    case FRAME_DATA:
    case FRAME_END:
    case FRAME_CREDIT:
    case FRAME_SIGNAL:
    case FRAME_RESIZE:
    case FRAME_MOUNT:
    case FRAME_USER:
    case FRAME_NETWORK:
    case FRAME_UNMOUNT:
    case FRAME_POWEROFF:
    case FRAME_PING:
    case FRAME_CALLS:
    case FRAME_GO:
    case FRAME_EXIT:
        return true;
    default:
        return false;
    }
}

/* Search for a HELLO that is whole and sound. A candidate whose payload turns out not to be one
   costs a single byte, so chance matches in a predecessor's data cannot swallow the real one. */
static size_t hunt(struct frame_parser *parser, const uint8_t *bytes, size_t count,
                   struct frame *frame, enum frame_outcome *outcome)
{
    static const uint8_t start[8] = {FRAME_MAGIC, FRAME_HELLO};
    size_t keep = count;

    for (size_t at = 0; at < count; at++) {
        const uint8_t *header = bytes + at;
        size_t left = count - at;

        if (*header != FRAME_MAGIC)
            continue;
        if (memcmp(header, start, left < sizeof start ? left : sizeof start) != 0)
            continue;
        if (left >= FRAME_HEADER) {
            uint32_t length = get_u32(header + 8);

            if (length > HELLO_LIMIT)
                continue;
            if (left - FRAME_HEADER >= length) {
                if (!hello_valid(header + FRAME_HEADER, length))
                    continue;
                *frame = (struct frame){.type = FRAME_HELLO,
                                        .length = length,
                                        .payload = header + FRAME_HEADER};
                parser->hunting = false;
                *outcome = FRAME_READY;
                return at + FRAME_HEADER + length;
            }
        }
        if (keep == count)
            keep = at;
    }
    *outcome = FRAME_WAIT;
    return keep;
}

size_t frame_take(struct frame_parser *parser, const uint8_t *bytes, size_t count,
                  struct frame *frame, enum frame_outcome *outcome)
{
    size_t at = 0;

    if (parser->hunting)
        return hunt(parser, bytes, count, frame, outcome);
    while (at < count && bytes[at] == 0)
        at++;
    *outcome = FRAME_WAIT;
    if (at == count)
        return at;

    const uint8_t *header = bytes + at;
    if (*header == FRAME_MAGIC && count - at < FRAME_HEADER)
        return at;
    if (*header != FRAME_MAGIC || !type_expected(header[1]) || header[2] > 2 || header[3] != 0 ||
        get_u32(header + 8) > FRAME_LIMIT) {
        parser->hunting = true;
        *outcome = FRAME_LOST;
        return at;
    }
    uint32_t length = get_u32(header + 8);
    if (count - at - FRAME_HEADER < length)
        return at;
    if (header[1] == FRAME_HELLO &&
        (length > HELLO_LIMIT || !hello_valid(header + FRAME_HEADER, length))) {
        parser->hunting = true;
        *outcome = FRAME_LOST;
        return at + 1;
    }
    *frame = (struct frame){.type = header[1],
                            .channel = header[2],
                            .stream = get_u32(header + 4),
                            .length = length,
                            .payload = header + FRAME_HEADER};
    *outcome = FRAME_READY;
    return at + FRAME_HEADER + length;
}

void frame_header(uint8_t *to, uint8_t type, uint8_t channel, uint32_t stream, uint32_t length)
{
    to[0] = FRAME_MAGIC;
    to[1] = type;
    to[2] = channel;
    to[3] = 0;
    put_u32(to + 4, stream);
    put_u32(to + 8, length);
}

int field_next(struct field_cursor *cursor, struct field *field)
{
    if (cursor->left == 0)
        return 0;
    if (cursor->left < FIELD_HEADER)
        return -1;
    field->key = get_u16(cursor->at);
    field->length = get_u32(cursor->at + 2);
    field->bytes = cursor->at + FIELD_HEADER;
    if (field->length > cursor->left - FIELD_HEADER)
        return -1;
    cursor->at += FIELD_HEADER + field->length;
    cursor->left -= FIELD_HEADER + field->length;
    return 1;
}

bool fields_well_formed(const uint8_t *bytes, size_t count)
{
    struct field_cursor cursor = {bytes, count};
    struct field field;
    int taken;

    while ((taken = field_next(&cursor, &field)) > 0)
        ;
    return taken == 0;
}

bool field_find(const uint8_t *bytes, size_t count, uint16_t key, struct field *field)
{
    struct field_cursor cursor = {bytes, count};
    struct field candidate;
    bool found = false;

    while (field_next(&cursor, &candidate) > 0) {
        if (candidate.key == key) {
            *field = candidate;
            found = true;
        }
    }
    return found;
}

bool field_u32(const uint8_t *bytes, size_t count, uint16_t key, uint32_t *value)
{
    struct field field;

    if (!field_find(bytes, count, key, &field) || field.length != 4)
        return false;
    *value = get_u32(field.bytes);
    return true;
}

bool field_u64(const uint8_t *bytes, size_t count, uint16_t key, uint64_t *value)
{
    struct field field;

    if (!field_find(bytes, count, key, &field) || field.length != 8)
        return false;
    *value = get_u64(field.bytes);
    return true;
}

bool field_text(const uint8_t *bytes, size_t count, uint16_t key, char *to, size_t size)
{
    struct field field;

    if (!field_find(bytes, count, key, &field) || field.length >= size ||
        memchr(field.bytes, 0, field.length) != NULL)
        return false;
    memcpy(to, field.bytes, field.length);
    to[field.length] = 0;
    return true;
}

bool hello_valid(const uint8_t *bytes, size_t count)
{
    struct field field;
    uint32_t version;
    uint64_t clock;

    return fields_well_formed(bytes, count) && field_u32(bytes, count, KEY_VERSION, &version) &&
           field_u64(bytes, count, KEY_CLOCK, &clock) &&
           field_find(bytes, count, KEY_NONCE, &field) && field.length == NONCE_SIZE &&
           field_find(bytes, count, KEY_MACHINE, &field) && field.length == MACHINE_SIZE &&
           field_find(bytes, count, KEY_HOSTNAME, &field) &&
           field_find(bytes, count, KEY_ENTROPY, &field) && field.length >= ENTROPY_LEAST;
}

uint8_t *field_put(uint8_t *at, uint16_t key, const void *bytes, uint32_t length)
{
    put_u16(at, key);
    put_u32(at + 2, length);
    memcpy(at + FIELD_HEADER, bytes, length);
    return at + FIELD_HEADER + length;
}

uint8_t *field_put_u32(uint8_t *at, uint16_t key, uint32_t value)
{
    uint8_t bytes[4];

    put_u32(bytes, value);
    return field_put(at, key, bytes, sizeof bytes);
}

uint8_t *field_put_u64(uint8_t *at, uint16_t key, uint64_t value)
{
    uint8_t bytes[8];

    put_u64(bytes, value);
    return field_put(at, key, bytes, sizeof bytes);
}
