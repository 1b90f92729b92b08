/* What Grid Engine would have started without its starter_method. It tells the way in variables,
   and the rest in the file that the job's shepherd was given. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>

#include "starter.h"

#define SHELL "/bin/sh"

enum { HEARD_S = 120 }; /* after its end the master has heard of a task */

/* With the number of its task, if it is an array's. */
void gridengine_id(char *text, size_t room)
{
    const char *task = variable("SGE_TASK_ID");
    bool array = *task != 0 && strcmp(task, "undefined") != 0;

    snprintf(text, room, "%s%s%s", variable("JOB_ID"), array ? "." : "", array ? task : "");
}

static FILE *spooled(const char *name)
{
    char path[4096];

    snprintf(path, sizeof path, "%s/%s", variable("SGE_JOB_SPOOL_DIR"), name);
    return fopen(path, "re");
}

/* A value in the file that the shepherd was given; NULL if it cannot be learned. */
static char *configured(const char *name)
{
    char *line = NULL, *value = NULL;
    size_t size = 0, length = strlen(name);
    ssize_t count;
    FILE *file = spooled("config");

    if (file == NULL)
        return NULL;
    while (value == NULL && (count = getline(&line, &size, file)) > 0) {
        if (line[count - 1] == '\n')
            line[count - 1] = 0;
        if (strncmp(line, name, length) == 0 && line[length] == '=')
            value = strdup(line + length + 1);
    }
    free(line);
    fclose(file);
    return value;
}

/* Whatever it ends a job for, it tells the shepherd, which writes that down first. */
bool gridengine_has_killed(void)
{
    char *line = NULL;
    size_t size = 0;
    bool killed = false;
    FILE *file = spooled("trace");

    while (file != NULL && !killed && getline(&line, &size, file) > 0)
        killed = strstr(line, " to signal KILL") != NULL ||
                 strstr(line, "lost connection -> exiting") != NULL ||
                 strstr(line, "queued signal TTOU") != NULL; /* it is migrated */
    free(line);
    if (file != NULL)
        fclose(file);
    return killed;
}

static bool is_task(int directory, const char *name)
{
    char status[300];
    struct stat found;

    if (name[0] == '.' || fstatat(directory, name, &found, AT_SYMLINK_NOFOLLOW) < 0 ||
        !S_ISDIR(found.st_mode))
        return false;
    snprintf(status, sizeof status, "%s/exit_status", name);
    return fstatat(directory, status, &found, AT_SYMLINK_NOFOLLOW) < 0 ||
           time(NULL) - found.st_mtime < HEARD_S;
}

/* Each has a directory in the job's until Grid Engine's master has heard of its end, and for longer
   where a site has them kept. */
bool gridengine_has_tasks(void)
{
    DIR *directory = opendir(variable("SGE_JOB_SPOOL_DIR"));
    struct dirent *entry;
    bool tasks = false;

    if (directory == NULL)
        return false;
    while (!tasks && (entry = readdir(directory)) != NULL)
        tasks = is_task(dirfd(directory), entry->d_name);
    closedir(directory);
    return tasks;
}

/* 0 or 1; -1 if it cannot be learned. */
static int configured_flag(const char *name)
{
    char *value = configured(name);
    int flag = value == NULL ? -1 : atoi(value) != 0;

    free(value);
    return flag;
}

static char **room_for(size_t words)
{
    char **room = calloc(words + 1, sizeof *room);

    if (room == NULL)
        fail(FAILED_LATER, "There is no memory left to start the job.");
    return room;
}

/* A command where only the words of scripts are passed on to us. */
static char **configured_command(void)
{
    char *command = configured("script_file"), *count = configured("njob_args");
    size_t arguments = count == NULL ? 0 : strtoul(count, NULL, 10);

    if (command == NULL || arguments > 65536)
        fail(FAILED_CALL, "Grid Engine does not say what the job is.");
    char **words = room_for(1 + arguments);
    words[0] = command;
    for (size_t i = 1; i <= arguments; i++) {
        char name[32];

        snprintf(name, sizeof name, "job_arg%zu", i);
        words[i] = configured(name);
        if (words[i] == NULL)
            words[i] = "";
    }
    return words;
}

/* The copy of a script that was submitted, job_scripts/ID, as opposed to a command. */
static bool is_spooled(const char *path)
{
    char ending[64];
    int length = snprintf(ending, sizeof ending, "/job_scripts/%s", variable("JOB_ID"));
    size_t whole = strlen(path);

    return length > 0 && (size_t)length < sizeof ending && whole > (size_t)length &&
           strcmp(path + whole - length, ending) == 0;
}

/* A command and its arguments as one line for a shell, which splits it as it likes. */
static char *as_line(char **words)
{
    size_t size = 1;
    char *line, *at;

    for (char **word = words; *word != NULL; word++)
        size += strlen(*word) + 3;
    at = line = (char *)room_for(size / sizeof(char *) + 1);
    for (char **word = words; *word != NULL; word++)
        at = stpcpy(stpcpy(at, **word == 0 ? "\"\"" : *word), " ");
    *at = 0;
    return line;
}

/* The script is our input, and `-s ARGUMENT...` are words for its shell. */
static char **read_by(char *shell, char **words)
{
    size_t count = 0;

    while (words[count] != NULL)
        count++;
    char **room = room_for(1 + count);
    room[0] = shell;
    memcpy(room + 1, words, count * sizeof *words);
    return room;
}

static void take_command(struct job *job, char *shell, bool login, char **words)
{
    job->words = words;
    if (configured_flag("no_shell") != 0)
        return;
    job->words = room_for(3);
    job->words[0] = shell;
    job->words[1] = "-c";
    job->words[2] = as_line(words);
    job->any_shell = strcmp(shell, SHELL) != 0;
    job->login = login;
}

static void take_script(struct job *job, char *shell, bool login, char **words)
{
    const char *mode = variable("SGE_STARTER_SHELL_START_MODE");
    bool command = strcasecmp(mode, "start_as_command") == 0;

    script_read(job, words[0], NULL);
    job->words = command ? room_for(0) : words + 1;
    if (command || strcasecmp(mode, "posix_compliant") == 0) {
        job->runner[0] = shell;
        job->runner[1] = command ? "-c" : NULL;
        job->login = login;
    }
}

/* A program that a job on several hosts has begun on another of them, with qrsh -inherit. */
static bool is_part(void)
{
    char *name = configured("pe_task_id");
    bool part = name != NULL;

    free(name);
    return part;
}

void gridengine_called(struct job *job, char **words)
{
    const char *mode = variable("SGE_STARTER_SHELL_START_MODE");
    char *shell = (char *)variable("SGE_STARTER_SHELL_PATH");
    bool login = strcasecmp(variable("SGE_STARTER_USE_LOGIN_SHELL"), "true") == 0;
    bool command = configured_flag("handle_as_binary") == 1;

    job->words = words;
    job->comes_back = *shell != 0;
    if (*shell == 0) { /* of qrsh, whose words any shell splits */
        job->part = is_part();
        job->comes_back = job->part; /* with all of its job */
        if (command || job->part)
            take_command(job, SHELL, false, words);
        return;
    }
    if (strcasecmp(mode, "script_from_stdin") != 0) {
        if (command || !is_spooled(words[0]))
            take_command(job, shell, login, words);
        else
            take_script(job, shell, login, words);
    } else if (command) {
        take_command(job, shell, login, configured_command());
    } else {
        job->words = read_by(shell, words);
        job->login = login;
    }
}
