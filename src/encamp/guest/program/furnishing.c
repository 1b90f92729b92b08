#define _GNU_SOURCE
#include "furnishing.h"

#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"

enum { MODE_SIZE = 4 };

static const char *const temporaries[] = {"TMPDIR=", "TMP=", "TEMP="};
static char *const plain[] = {"TMPDIR=/tmp", "TMP=/tmp", "TEMP=/tmp"};

bool furnishing_valid(const struct field *file)
{
    if (file->length <= MODE_SIZE)
        return false;
    const char *path = (const char *)file->bytes + MODE_SIZE;
    size_t length = strnlen(path, file->length - MODE_SIZE);
    return length < file->length - MODE_SIZE && length < PATH_MAX && path_plain(path) &&
           path[length - 1] != '/';
}

static bool is_directory(const char *path)
{
    struct stat found;

    return stat(path, &found) == 0 && S_ISDIR(found.st_mode);
}

/* Is it below what is temporary for everybody? */
static bool is_temporary(const char *path)
{
    return strncmp(path, "/tmp/", 5) == 0 || strncmp(path, "/var/tmp/", 9) == 0;
}

/* A directory of the user's own, in directories of root's. One that is there stays whose it is. */
static int give_directory(const char *path, const struct launch *launch)
{
    char above[PATH_MAX];
    const char *last = strrchr(path, '/');
    int error = 0;

    memcpy(above, path, (size_t)(last - path));
    above[last - path] = 0;
    if (last > path)
        error = directory_make(above, 0755);
    if (error == 0 && mkdir(path, 0700) < 0)
        return errno == EEXIST ? 0 : errno;
    if (error == 0 && geteuid() == 0 && chown(path, launch->uid, launch->gid) < 0)
        error = errno;
    return error;
}

/* What needs root's rights. Nobody gets a directory of the system's for his own by naming it: one
   for temporary files is made here only where the image has nothing at all. */
static int make_directories(const struct launch *launch)
{
    char path[PATH_MAX];

    for (size_t i = 0; i < launch->file_count; i++) {
        strcpy(path, (const char *)launch->files[i].bytes + MODE_SIZE);
        char *last = strrchr(path, '/');
        *last = 0;
        int error = last == path ? 0 : give_directory(path, launch);
        if (error != 0)
            return error;
    }
    if (launch->temporary != NULL) {
        struct stat found;

        strcpy(path, launch->temporary);
        path[1 + strcspn(path + 1, "/")] = 0;
        if (lstat(path, &found) < 0 && errno == ENOENT)
            give_directory(launch->temporary, launch);
    }
    return 0;
}

/* With the user's own rights, so that nothing is written that the user could not write. */
static int put_files(const struct launch *launch)
{
    for (size_t i = 0; i < launch->file_count; i++) {
        const struct field *file = &launch->files[i];
        const char *path = (const char *)file->bytes + MODE_SIZE;
        const char *content = path + strlen(path) + 1;
        size_t count = file->length - (size_t)(content - (const char *)file->bytes);
        mode_t mode = get_u32(file->bytes) & 0777;
        /* in a new machine there is none, and nothing has to make way */
        int error = file_create(path, content, count, mode);

        if (error == EEXIST)
            error = file_replace(path, content, count, mode);
        if (error != 0)
            return error;
    }
    return 0;
}

/* Variables that name a directory for temporary files which cannot be had name the usual one. */
static void name_another(const struct launch *launch)
{
    const char *named = NULL;

    for (char **variable = launch->envp; *variable != NULL; variable++) {
        if (strncmp(*variable, temporaries[0], strlen(temporaries[0])) == 0)
            named = *variable + strlen(temporaries[0]);
    }
    for (char **variable = launch->envp; named != NULL && *variable != NULL; variable++) {
        for (size_t i = 0; i < sizeof temporaries / sizeof *temporaries; i++) {
            size_t length = strlen(temporaries[i]);

            if (strncmp(*variable, temporaries[i], length) == 0 &&
                strcmp(*variable + length, named) == 0) {
                *variable = plain[i];
                break;
            }
        }
    }
}

int furnish(const struct launch *launch)
{
    bool root = geteuid() == 0;
    int error;

    if (launch->file_count == 0 && launch->temporary == NULL)
        return 0;
    umask(0);
    error = make_directories(launch);
    if (error != 0)
        return error;
    if (root && (setgroups(launch->group_count, launch->groups) < 0 || setegid(launch->gid) < 0 ||
                 seteuid(launch->uid) < 0))
        return errno;
    error = put_files(launch);
    if (launch->temporary != NULL) {
        if (!is_directory(launch->temporary) && is_temporary(launch->temporary))
            directory_make(launch->temporary, 0700);
        if (!is_directory(launch->temporary))
            name_another(launch);
    }
    if (root && (seteuid(0) < 0 || setegid(0) < 0))
        return errno;
    return error;
}
