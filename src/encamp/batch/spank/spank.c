#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <slurm/slurm.h>
#include <slurm/spank.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plugin.h"

SPANK_PLUGIN(encamp, 1)

static const char left_alone[] = "none";

static char chosen[NAME_LIMIT + 1]; /* empty: nothing was asked for */
static bool unknown;                /* Slurm did not tell whether something was */

/* slurmctld, srun and sbatch call this where the option is read, slurmstepd where it arrives. */
static int choose(int value, const char *name, int remote)
{
    (void)value;
    (void)remote;
    if (name == NULL || !name_is_good(name)) {
        slurm_error("encamp: --vmenv takes the name of an environment: letters, digits, '.', '_' "
                    "and '-'.");
        return -1;
    }
    strcpy(chosen, name);
    return 0;
}

static struct spank_option option = {
    .name = "vmenv",
    .arginfo = "NAME",
    .usage = "run in a virtual machine of the environment NAME ('none': in none)",
    .has_arg = 1,
    .cb = choose,
};

static const char *starter(int count, char *words[])
{
    for (int i = 0; i < count; i++) {
        if (words[i][0] == '/')
            return words[i];
    }
    return NULL;
}

static bool comments_count(int count, char *words[])
{
    for (int i = 0; i < count; i++) {
        if (strcmp(words[i], "comment=yes") == 0)
            return true;
    }
    return false;
}

int slurm_spank_init(spank_t spank, int count, char *words[])
{
    spank_context_t context = spank_context();

    if (starter(count, words) == NULL) {
        slurm_error("encamp: plugstack.conf does not say where the starter is");
        return -1;
    }
    if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR && context != S_CTX_REMOTE)
        return 0;
    return spank_option_register(spank, &option) == ESPANK_SUCCESS ? 0 : -1;
}

static uint32_t item(spank_t spank, spank_item_t which)
{
    uint32_t value = NO_VAL;

    return spank_get_item(spank, which, &value) == ESPANK_SUCCESS ? value : NO_VAL;
}

/* Where a job is submitted: what names the environment of a script has to be known there, in
   whatever way it was named. Then once for each step on a node, before any of its tasks. The script
   of a job has been seen to when it was submitted. */
int slurm_spank_init_post_opt(spank_t spank, int count, char *words[])
{
    spank_context_t context = spank_context();

    if ((context == S_CTX_ALLOCATOR || context == S_CTX_LOCAL) && chosen[0] != 0)
        spank_job_control_setenv(spank, "ENCAMP_VMENV", chosen, 1);
    if (!spank_remote(spank) || chosen[0] != 0 || !comments_count(count, words))
        return 0;
    uint32_t step = item(spank, S_JOB_STEPID);
    if (step >= SLURM_MAX_NORMAL_STEP_ID)
        return 0;
    unknown = name_of_job(item(spank, S_JOB_ID), chosen) < 0;
    return 0;
}

/* A script whose first line calls the starter already has its environment. */
static bool calls_starter(const char *script, const char *program)
{
    char line[4096] = "";
    size_t length = strlen(program);
    int file = open(script, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);

    if (file < 0)
        return false;
    ssize_t count = read(file, line, sizeof line - 1);
    close(file);
    return count > (ssize_t)length + 2 && strncmp(line, "#!", 2) == 0 &&
           strncmp(line + 2, program, length) == 0 && line[length + 2] == ' ';
}

/* In the task, as its user, in place of what it would run. */
int slurm_spank_task_init(spank_t spank, int count, char *words[])
{
    const char *program = starter(count, words);
    bool script = item(spank, S_JOB_STEPID) == SLURM_BATCH_SCRIPT;
    char first[16 + NAME_LIMIT], **environment, **given;
    int number, used = 0;

    if (unknown) {
        slurm_error("encamp: Slurm did not tell which environment the job has; try again.");
        exit(75);
    }
    if (chosen[0] == 0 || strcmp(chosen, left_alone) == 0 || program == NULL)
        return 0;
    if (spank_get_item(spank, S_JOB_ARGV, &number, &given) != ESPANK_SUCCESS || number < 1 ||
        spank_get_item(spank, S_JOB_ENV, &environment) != ESPANK_SUCCESS) {
        slurm_error("encamp: Slurm did not tell what the task is.");
        exit(75);
    }
    if (script && calls_starter(given[0], program))
        return 0;
    char **command = calloc((size_t)number + 4, sizeof *command);
    if (command == NULL)
        exit(75);
    snprintf(first, sizeof first, "slurm:%s", chosen);
    command[used++] = (char *)program;
    command[used++] = first;
    if (!script)
        command[used++] = "--";
    memcpy(command + used, given, (size_t)number * sizeof *command);
    execve(program, command, environment);
    /* never plainly: it would not be what the job asked for */
    slurm_error("encamp: %s cannot be run: %s", program, strerror(errno));
    exit(75);
}
