/* No environment is meant for the job: it is started as it would have been without us. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "starter.h"

static size_t count_words(char **words)
{
    size_t count = 0;

    while (words[count] != NULL)
        count++;
    return count;
}

/* Grid Engine holds such a job back until somebody has looked at it. */
static _Noreturn void cannot_run(const struct job *job, const char *what)
{
    int error = errno, code = error == ENOENT ? 127 : 126;

    if (job->system == GRIDENGINE && job->comes_back)
        code = GRIDENGINE_ERROR;
    fail(code, "%s cannot be run: %s", what, strerror(error));
}

/* A script without #! is the shell's. */
static void execute(const char *file, char **words)
{
    execvp(file, words);
    if (errno != ENOEXEC)
        return;
    size_t count = count_words(words);
    char **with_shell = malloc((count + 2) * sizeof *words);
    if (with_shell == NULL)
        return;
    with_shell[0] = "/bin/sh";
    with_shell[1] = (char *)file;
    memcpy(with_shell + 2, words + 1, count * sizeof *words);
    execv(with_shell[0], with_shell);
}

static bool write_all(int file, const char *bytes, size_t length)
{
    while (length > 0) {
        ssize_t written = write(file, bytes, length);

        if (written < 0)
            return false;
        bytes += written;
        length -= (size_t)written;
    }
    return true;
}

/* Take our line out of the batch system's copy, which is this job's own. */
static bool rewrite(const struct job *job)
{
    struct stat found;
    int file = open(job->script, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);

    if (file < 0 && errno == EACCES && lstat(job->script, &found) == 0 && S_ISREG(found.st_mode) &&
        chmod(job->script, found.st_mode | S_IWUSR) == 0)
        file = open(job->script, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0)
        return false;
    bool done = fstat(file, &found) == 0 && S_ISREG(found.st_mode) && found.st_nlink == 1 &&
                write_all(file, job->content, job->content_length) &&
                ftruncate(file, (off_t)job->content_length) == 0;
    close(file);
    return done;
}

/* A file in memory that has the script's text, under a name that interpreters can open. */
static const char *in_memory(const struct job *job)
{
    static char path[32];
    int file = memfd_create("script", 0), again;
    char reading[32];

    if (file < 0 || fchmod(file, 0500) < 0 || !write_all(file, job->content, job->content_length))
        cannot_run(job, job->script);
    snprintf(reading, sizeof reading, "/proc/self/fd/%d", file);
    again = open(reading, O_RDONLY);
    if (again < 0)
        cannot_run(job, job->script);
    close(file); /* what is open for writing cannot be executed */
    snprintf(path, sizeof path, "/proc/self/fd/%d", again);
    return path;
}

static char *login_name(const char *shell)
{
    const char *slash = strrchr(shell, '/');
    char *name;

    return asprintf(&name, "-%s", slash == NULL ? shell : slash + 1) < 0 ? NULL : name;
}

void run_plainly(struct job *job)
{
    const char *file = job->words[0];
    char **words = job->words;

    if (job->script != NULL) {
        size_t before = count_words(job->runner), after = count_words(job->words);
        const char *script = job->script;

        if (job->skipped && !(job->spooled && rewrite(job)))
            script = in_memory(job);
        words = malloc((before + after + 2) * sizeof *words);
        if (words == NULL)
            fail(FAILED_LATER, "There is no memory left to start the job.");
        memcpy(words, job->runner, before * sizeof *words);
        words[before] = (char *)script;
        memcpy(words + before + 1, job->words, (after + 1) * sizeof *words);
        file = words[0];
    }
    if (job->login) {
        char *name = login_name(file);

        if (name != NULL)
            words[0] = name;
    }
    guard_end();
    signals_give_back();
    execute(file, words);
    cannot_run(job, file);
}
