#define _GNU_SOURCE
#include "builtins.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive.h"
#include "console.h"
#include "probes.h"
#include "relay.h"

static long fill_from_fd(struct source *source, void *to, size_t count)
{
    return read(source->fd, to, count);
}

static int pack(char **words)
{
    return archive_pack(words[0], words + 1);
}

static int unpack(char **words)
{
    struct source source = {.fill = fill_from_fd, .fd = 0};

    return archive_unpack(words[0], &source);
}

/* Unpack for somebody, and tell where that was: a link in the path may lead elsewhere. */
static int unpack_for(char **words)
{
    struct source source = {.fill = fill_from_fd, .fd = 0};

    if (!archive_give_to(words[1], words[2]))
        return 1;
    int code = archive_unpack(words[0], &source);
    char *place = code == 0 ? realpath(words[0], NULL) : NULL;
    if (code == 0 && (place == NULL || fputs(place, stdout) < 0 || fflush(stdout) != 0)) {
        fprintf(stderr, "%s: %s\n", words[0], strerror(errno));
        code = 1;
    }
    free(place);
    return code;
}

static int pack_changes(char **words)
{
    return archive_changes(BUILTIN_LAYER, words);
}

static int is_directory(char **words)
{
    struct stat found;

    return stat(words[0], &found) < 0 || !S_ISDIR(found.st_mode);
}

static int exists(char **words)
{
    return probe_file(words[0]);
}

static int answers(char **words)
{
    return probe_port(words[0]);
}

/* For tests: a share's relay on descriptors that it inherits, on a host and without PID 1. */
static int relay_shares(char **words)
{
    in_machine = false;
    relay_run(atoi(words[0]), atoi(words[1]), words[2] == NULL ? -1 : atoi(words[2]));
}

static const struct builtin {
    const char *name;
    const char *words;
    int least, most;
    int (*run)(char **words);
} builtins[] = {
    {"pack", "BASE PATTERN...", 2, 1 << 20, pack},
    {"pack-changes", "[LEFT-OUT]...", 0, 1 << 20, pack_changes},
    {"unpack", "DEST", 1, 1, unpack},
    {"unpack", "DEST OWNER GROUP", 3, 3, unpack_for},
    {"is-directory", "PATH", 1, 1, is_directory},
    {"exists", "PATH", 1, 1, exists},
    {"answers", "PORT", 1, 1, answers},
    {"shares-relay", "PORT-FD FUSE-FD [WINDOW-FD]", 2, 3, relay_shares},
};

enum { COUNT = sizeof builtins / sizeof *builtins };

bool builtin_knows(const char *name)
{
    for (size_t i = 0; i < COUNT; i++) {
        if (strcmp(builtins[i].name, name) == 0)
            return true;
    }
    return false;
}

int builtin_main(int argc, char **argv)
{
    for (size_t i = 0; i < COUNT; i++) {
        const struct builtin *one = &builtins[i];

        if (strcmp(one->name, argv[0]) == 0 && argc - 1 >= one->least && argc - 1 <= one->most)
            return one->run(argv + 1);
    }
    fprintf(stderr, "usage:");
    for (size_t i = 0; i < COUNT; i++)
        fprintf(stderr, "%s %s %s", i == 0 ? "" : " |", builtins[i].name, builtins[i].words);
    fprintf(stderr, "\n");
    return 64;
}
