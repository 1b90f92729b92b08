#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "starter.h"

/* Is it the copy that Slurm made for this job alone, spool/jobNNNNN/slurm_script? */
static bool is_spooled(const char *path)
{
    char ending[64];
    unsigned long id = strtoul(variable("SLURM_JOB_ID"), NULL, 10);
    int length = snprintf(ending, sizeof ending, "/job%05lu/slurm_script", id);
    size_t whole = strlen(path);

    return id > 0 && length > 0 && whole > (size_t)length &&
           strcmp(path + whole - length, ending) == 0;
}

/* The length of the first line, if it is the one that called us: it ends with our first word. */
static size_t calling_line(const char *content, size_t length, const char *word)
{
    const char *newline = memchr(content, '\n', length);
    size_t line = newline == NULL ? length : (size_t)(newline - content);
    size_t end = line, size = strlen(word);

    if (length < 2 || memcmp(content, "#!", 2) != 0)
        return 0;
    while (end > 0 && strchr(" \t\r", content[end - 1]) != NULL)
        end--;
    if (end < size + 3 || memcmp(content + end - size, word, size) != 0)
        return 0;
    return newline == NULL ? length : line + 1;
}

void script_read(struct job *job, const char *path, const char *our_line)
{
    struct stat found;
    /* not to wait for somebody at the other end of what is no file */
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);

    if (file < 0 && errno == ELOOP)
        fail(FAILED_SCRIPT, "The job's script %s is a symbolic link; it has to be a file.", path);
    if (file < 0 || fstat(file, &found) < 0)
        fail(FAILED_SCRIPT, "The job's script %s cannot be read: %s", path, strerror(errno));
    if (!S_ISREG(found.st_mode))
        fail(FAILED_SCRIPT, "The job's script %s is not a file.", path);
    if (found.st_size > SCRIPT_LIMIT)
        fail(FAILED_DATA, "The job's script is too long: %lld bytes; 4 MiB can be handed over.",
             (long long)found.st_size);

    size_t size = (size_t)found.st_size, length = 0;
    char *content = malloc(size + 1);
    if (content == NULL)
        fail(FAILED_LATER, "There is no memory left to read the job's script.");
    while (length < size) {
        ssize_t count = read(file, content + length, size - length);

        if (count < 0)
            fail(FAILED_SCRIPT, "The job's script %s cannot be read: %s", path, strerror(errno));
        if (count == 0)
            break;
        length += (size_t)count;
    }
    close(file);

    size_t skip = our_line == NULL ? 0 : calling_line(content, length, our_line);
    job->script = path;
    job->content = content + skip;
    job->content_length = length - skip;
    job->skipped = skip > 0;
    job->spooled = is_spooled(path);
}
