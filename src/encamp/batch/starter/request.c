/* The frame that hands the job over: u32 length, 'J', then fields of u8 tag, u32 length, bytes.
   All numbers are little-endian. It is laid out twice: to learn its size, then to fill it. */
#define _GNU_SOURCE
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "starter.h"

extern char **environ;

enum { WIRE = 1, HEAD = 5, TRIES_AT = HEAD + 5, LOST_AT = TRIES_AT + 6 };

static void put_u32(uint8_t *to, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        to[i] = (uint8_t)(value >> (8 * i));
}

static void put_u64(uint8_t *to, uint64_t value)
{
    put_u32(to, (uint32_t)value);
    put_u32(to + 4, (uint32_t)(value >> 32));
}

static void add(struct request *request, char tag, const void *bytes, size_t length)
{
    if (request->bytes != NULL) {
        uint8_t *at = request->bytes + request->length;

        at[0] = (uint8_t)tag;
        put_u32(at + 1, (uint32_t)length);
        memcpy(at + HEAD, bytes, length);
    }
    request->length += HEAD + length;
    request->fields++;
}

static void add_text(struct request *request, char tag, const char *text)
{
    add(request, tag, text, strlen(text));
}

/* Shells of one family know -l; those of the other do not take it together with a script. */
static bool knows_login_option(const char *shell)
{
    size_t length = strlen(shell);

    return length > 2 && strcmp(shell + length - 2, "sh") == 0 && strstr(shell, "csh") == NULL;
}

static void add_words(struct request *request, char tag, char *const *words, bool login)
{
    for (char *const *word = words; *word != NULL; word++) {
        add_text(request, tag, *word);
        if (login && word == words && knows_login_option(*word))
            add_text(request, tag, "-l");
    }
}

/* A shell that only this host is sure to have: a command was submitted, and none was named. */
static void add_choice_of_shell(struct request *request)
{
    add_text(request, 'a', "/bin/sh");
    add_text(request, 'a', "-c");
    add_text(request, 'a', "[ -x \"$0\" ] && exec \"$0\" \"$@\"; exec /bin/sh \"$@\"");
}

static void add_variables(struct request *request)
{
    size_t before = request->length;

    for (char **entry = environ; *entry != NULL; entry++) {
        const char *equals = strchr(*entry, '=');

        if (equals != NULL && equals != *entry) /* anything else is no variable */
            add_text(request, 'm', *entry);
    }
    if (request->length - before > VARIABLES_LIMIT)
        fail(FAILED_DATA, "The job's environment variables are too long: %zu bytes; 2 MiB can be "
                          "handed over. Put long values into files.", request->length - before);
}

static void add_limits(struct request *request)
{
    for (int resource = 0; resource < RLIM_NLIMITS; resource++) {
        struct rlimit limit;
        uint8_t bytes[17];

        if (getrlimit(resource, &limit) < 0)
            continue;
        bytes[0] = (uint8_t)resource;
        put_u64(bytes + 1, limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur);
        put_u64(bytes + 9, limit.rlim_max == RLIM_INFINITY ? UINT64_MAX : limit.rlim_max);
        add(request, 'l', bytes, sizeof bytes);
    }
}

/* The id that the job's variables claim; the agent only compares it with what it finds itself. */
static void add_claim(struct request *request, enum system system)
{
    char text[128];

    if (system == GRIDENGINE) {
        gridengine_id(text, sizeof text);
    } else {
        snprintf(text, sizeof text, "%s", variable("SLURM_JOB_ID"));
        if (system == PBS && *text == 0)
            snprintf(text, sizeof text, "%s", variable("PBS_JOBID"));
    }
    if (*text != 0)
        add_text(request, 'i', text);
}

static void lay_out(struct request *request, const struct job *job, uint32_t mask)
{
    uint8_t number[4], none = 0, wire = WIRE;
    char directory[PATH_MAX];

    request->length = HEAD;
    request->fields = 0;
    add(request, 't', &none, 1);
    add(request, 'b', &none, 1);
    add(request, 'v', &wire, 1);
    add_text(request, 's', job->system_name);
    if (*job->environment != 0)
        add_text(request, 'e', job->environment);
    add_words(request, 'r', job->runner, job->login);
    if (job->any_shell)
        add_choice_of_shell(request);
    add_words(request, 'a', job->words, job->login && job->script == NULL);
    if (job->script != NULL) {
        add(request, 'p', job->content, job->content_length);
        add_text(request, 'n', job->script);
    }
    if (job->over != 0) {
        put_u32(number, (uint32_t)job->over);
        add(request, 'o', number, sizeof number);
    } else {
        add_variables(request);
    }
    if (getcwd(directory, sizeof directory) != NULL && directory[0] == '/')
        add_text(request, 'w', directory);
    put_u32(number, mask);
    add(request, 'u', number, sizeof number);
    add_limits(request);
    add_claim(request, job->system);
}

void request_make(struct request *request, const struct job *job)
{
    mode_t mask = umask(0);

    umask(mask);
    /* Slurm's go to the script alone unless somebody wants otherwise, Grid Engine's to all */
    request->early_alone = job->system == SLURM || job->system == PBS;
    request->part = job->part;
    request->shepherd = job->over == 0 ? shepherd_open(job->system) : -1;
    request->bytes = NULL;
    lay_out(request, job, mask);
    if (request->length - HEAD > FRAME_LIMIT)
        fail(FAILED_DATA, "The job's script, arguments and variables are too long: %zu bytes; "
                          "8 MiB can be handed over.", request->length);
    if (request->fields > FIELDS_LIMIT)
        fail(FAILED_DATA, "The job has too many arguments and variables: %zu; about 131000 can be "
                          "handed over. Put long lists into files.", request->fields);
    request->bytes = malloc(request->length);
    if (request->bytes == NULL)
        fail(FAILED_LATER, "There is no memory left to hand the job over.");
    lay_out(request, job, mask);
    put_u32(request->bytes, (uint32_t)(request->length - HEAD));
    request->bytes[4] = 'J';
}

void request_mark(struct request *request, unsigned tries, bool lost)
{
    request->bytes[TRIES_AT] = tries > UINT8_MAX ? UINT8_MAX : (uint8_t)tries;
    request->bytes[LOST_AT] = lost;
}
