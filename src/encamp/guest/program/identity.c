#define _GNU_SOURCE
#include "identity.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "console.h"
#include "files.h"
#include "frames.h"
#include "hosts.h"

enum { NAME_LIMIT = 64, CLOCK_SLACK_NS = 500000000 };

/* <linux/random.h>, which a C library need not bring along */
#define ADD_ENTROPY _IOW('R', 0x03, int[2])
#define RESEED_GENERATOR _IO('R', 0x07)

static uint8_t machine[MACHINE_SIZE];

const uint8_t *identity_machine(void)
{
    return machine;
}

/* Adding alone would leave the generator as the template's for up to a minute. */
static void stir_entropy(const uint8_t *bytes, size_t count)
{
    struct {
        int bits;
        int size;
        uint8_t bytes[512];
    } pool;
    int random = open("/dev/urandom", O_RDWR | O_CLOEXEC);

    if (random < 0) {
        say("/dev/urandom cannot be opened: %s", strerror(errno));
        return;
    }
    while (count > 0) {
        size_t part = count < sizeof pool.bytes ? count : sizeof pool.bytes;

        pool.bits = (int)part * 8;
        pool.size = (int)part;
        memcpy(pool.bytes, bytes, part);
        if (ioctl(random, ADD_ENTROPY, &pool) < 0)
            say("entropy was not taken: %s", strerror(errno));
        bytes += part;
        count -= part;
    }
    explicit_bzero(&pool, sizeof pool);
    if (ioctl(random, RESEED_GENERATOR) < 0)
        say("the random generator was not seeded anew: %s", strerror(errno));
    close(random);
}

static void set_clock(uint64_t wanted, bool always)
{
    struct timespec now;
    struct timespec then = {.tv_sec = (time_t)(wanted / 1000000000),
                            .tv_nsec = (long)(wanted % 1000000000)};

    clock_gettime(CLOCK_REALTIME, &now);
    int64_t off = ((int64_t)then.tv_sec - (int64_t)now.tv_sec) * 1000000000 +
                  (then.tv_nsec - now.tv_nsec);
    if ((always || off > CLOCK_SLACK_NS || off < -CLOCK_SLACK_NS) &&
        clock_settime(CLOCK_REALTIME, &then) < 0)
        say("the clock was not set: %s", strerror(errno));
}

static bool name_valid(const char *name)
{
    for (const char *at = name; *at != 0; at++) {
        bool letter = (*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z') ||
                      (*at >= '0' && *at <= '9');

        if (!letter && *at != '-' && *at != '.' && *at != '_')
            return false;
    }
    return *name != 0;
}

static void take_name(const char *name)
{
    char line[NAME_LIMIT + 2];

    if (sethostname(name, strlen(name)) < 0)
        say("the host name was not set: %s", strerror(errno));
    int length = snprintf(line, sizeof line, "%s\n", name);
    file_write("/etc/hostname", line, (size_t)length, 0644);
    hosts_write("127.0.1.1", name, "");
}

static void write_machine_id(void)
{
    char line[2 * MACHINE_SIZE + 2];

    for (size_t i = 0; i < MACHINE_SIZE; i++)
        sprintf(line + 2 * i, "%02x", machine[i]);
    line[2 * MACHINE_SIZE] = '\n';
    file_write("/etc/machine-id", line, 2 * MACHINE_SIZE + 1, 0644);
}

void identity_hello(const uint8_t *payload, size_t length)
{
    struct field id, entropy;
    char name[NAME_LIMIT + 1];
    uint64_t clock = 0;

    field_find(payload, length, KEY_MACHINE, &id);
    field_find(payload, length, KEY_ENTROPY, &entropy);
    field_u64(payload, length, KEY_CLOCK, &clock);
    bool other = memcmp(machine, id.bytes, MACHINE_SIZE) != 0;
    memcpy(machine, id.bytes, MACHINE_SIZE);
    if (!in_machine)
        return;
    set_clock(clock, other);
    stir_entropy(entropy.bytes, entropy.length);
    if (!other)
        return;
    if (field_text(payload, length, KEY_HOSTNAME, name, sizeof name) && name_valid(name))
        take_name(name);
    else
        say("the host name given is not a name and was left out");
    write_machine_id();
}
