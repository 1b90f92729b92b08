/* Feeds the parsers what nobody should send. Reads cases from stdin, each a letter ('f' frames,
   'a' archive), a little-endian u32 length and that many bytes; unpacks archives into argv[1].
   Built with the sanitizers by `make fuzz`, never into the guest program. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "archive.h"
#include "frames.h"
#include "launch.h"

static void look_at(const struct frame *frame)
{
    struct launch launch;
    struct field field;
    char text[64];
    uint32_t small;
    uint64_t large;

    for (uint16_t key = 0; key <= KEY_HELD + 1; key++) {
        field_find(frame->payload, frame->length, key, &field);
        field_u32(frame->payload, frame->length, key, &small);
        field_u64(frame->payload, frame->length, key, &large);
        field_text(frame->payload, frame->length, key, text, sizeof text);
    }
    if (launch_parse(&launch, frame->payload, frame->length) == 0)
        launch_free(&launch);
}

/* As a session does it, but the bytes come in pieces whose sizes the case itself chooses, and
   each look is at a copy of exact size, so that reading past its end is noticed. */
static void try_frames(const uint8_t *bytes, size_t count)
{
    struct frame_parser parser;
    size_t start = 0, end = 0;

    frame_parser_reset(&parser);
    while (end < count) {
        enum frame_outcome outcome = FRAME_READY;
        size_t step = 1 + (bytes[end] * 7U + end) % 97;

        end = end + step < count ? end + step : count;
        while (outcome != FRAME_WAIT) {
            struct frame frame;
            uint8_t *copy = malloc(end - start + !(end - start));

            memcpy(copy, bytes + start, end - start);
            size_t used = frame_take(&parser, copy, end - start, &frame, &outcome);
            if (used > end - start)
                abort();
            if (outcome == FRAME_READY)
                look_at(&frame);
            free(copy);
            start += used;
        }
    }
}

static long fill(struct source *source, void *to, size_t count)
{
    size_t step = 1 + source->left % 4093;

    if (count > step)
        count = step;
    if (count > source->left)
        count = source->left;
    memcpy(to, source->bytes, count);
    source->bytes += count;
    source->left -= count;
    return (long)count;
}

int main(int argc, char **argv)
{
    uint8_t head[5];
    unsigned cases = 0;

    if (argc != 2)
        return 64;
    while (fread(head, 1, sizeof head, stdin) == sizeof head) {
        uint32_t length = get_u32(head + 1);
        uint8_t *bytes = malloc(length + 1U);

        if (bytes == NULL || fread(bytes, 1, length, stdin) != length)
            return 1;
        if (head[0] == 'f') {
            try_frames(bytes, length);
        } else {
            struct source source = {.fill = fill, .bytes = bytes, .left = length};

            archive_unpack(argv[1], &source);
        }
        free(bytes);
        cases++;
    }
    printf("%u\n", cases);
    return 0;
}
