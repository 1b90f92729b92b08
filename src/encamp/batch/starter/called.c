/* How we were called, which says what the job is:

     encamp-starter SYSTEM[:ENVIRONMENT] -- COMMAND ARGUMENT...
     encamp-starter SYSTEM[:ENVIRONMENT] SCRIPT ARGUMENT...     as a script's first line has it
     encamp-starter gridengine COMMAND ARGUMENT...
     encamp-starter-gridengine COMMAND ARGUMENT...              Grid Engine's starter_method, which
     encamp-starter COMMAND ARGUMENT...                         cannot be given words of its own */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "starter.h"

const char *variable(const char *name)
{
    const char *value = getenv(name);

    return value == NULL ? "" : value;
}

static bool is_letter_or_digit(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

bool good_name(const char *name)
{
    size_t length = strlen(name);

    if (length == 0 || length > 64 || !is_letter_or_digit(name[0]))
        return false;
    for (size_t i = 0; i < length; i++) {
        if (!is_letter_or_digit(name[i]) && strchr("._-", name[i]) == NULL)
            return false;
    }
    return true;
}

static enum system known(const char *name)
{
    static const char *const names[ANOTHER] = {"slurm", "gridengine", "pbs"};
    enum system system = 0;

    while (system < ANOTHER && strcmp(names[system], name) != 0)
        system++;
    return system;
}

/* `SYSTEM` or `SYSTEM:ENVIRONMENT`? One that we know nothing of has to be followed by ':' or '--',
   since anything may be called that. */
static bool take_system(struct job *job, const char *word, const char *next)
{
    size_t length = strcspn(word, ":");

    if (length == 0 || length >= sizeof job->system_name)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (!(word[i] >= 'a' && word[i] <= 'z') &&
            (i == 0 || !((word[i] >= '0' && word[i] <= '9') || word[i] == '_')))
            return false;
    }
    memcpy(job->system_name, word, length);
    job->system_name[length] = 0;
    job->system = known(job->system_name);
    job->environment = word[length] == ':' ? word + length + 1 : "";
    return job->system != ANOTHER || word[length] == ':' ||
           (next != NULL && strcmp(next, "--") == 0);
}

/* Grid Engine starts us under the name of the file, with a '-' before it for a login shell; it
   also says how it would have started the job. */
static bool is_method(const char *own_name, const char *word)
{
    static const char name[] = "encamp-starter-gridengine";
    const char *slash = strrchr(own_name, '/');
    const char *last = slash == NULL ? own_name : slash + 1;

    if (strcmp(last, name) == 0 || (last[0] == '-' && strcmp(last + 1, name) == 0))
        return true;
    return getenv("SGE_STARTER_SHELL_START_MODE") != NULL && strcmp(word, "gridengine") != 0 &&
           strncmp(word, "slurm:", 6) != 0 && strncmp(word, "pbs:", 4) != 0;
}

void called(struct job *job, int argc, char **argv)
{
    char **words = argv + 1;

    if (argc > 1 && is_method(argv[0], argv[1]))
        take_system(job, "gridengine", NULL);
    else if (argc > 1 && take_system(job, argv[1], argv[2]))
        words++;
    else
        fail(FAILED_CALL, "A batch system calls this program: encamp-starter "
                          "SYSTEM[:ENVIRONMENT] [--] COMMAND [ARGUMENT...]");
    if (*words == NULL)
        fail(FAILED_CALL, "There is no command to run.");
    if (job->system == GRIDENGINE && *job->environment == 0)
        job->environment = variable("ENCAMP_ENVIRONMENT");
    /* the name is not repeated: it may be made to look like anything on somebody's terminal */
    if (*job->environment != 0 && !good_name(job->environment))
        fail(FAILED_CALL, "What the job asks for cannot be the name of an environment. Names are "
                          "letters, digits, '.', '_' and '-', and begin with a letter or digit.");

    if (words == argv + 1) {
        gridengine_called(job, words);
    } else if (strcmp(*words, "--") == 0) {
        job->words = words + 1;
        if (*job->words == NULL)
            fail(FAILED_CALL, "There is no command to run.");
    } else if (job->system == GRIDENGINE) {
        gridengine_called(job, words);
    } else {
        job->words = words + 1;
        script_read(job, *words, argv[1]);
        job->comes_back = true;
    }
}
