#define _GNU_SOURCE
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "builtins.h"
#include "console.h"
#include "files.h"
#include "frames.h"
#include "furnishing.h"
#include "power.h"
#include "surroundings.h"

static const char default_path[] =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/* One of a resource that this kernel does not know is left out. */
static bool take_limit(struct launch *launch, const struct field *field)
{
    if (field->length != 20)
        return false;
    uint32_t resource = get_u32(field->bytes);
    if (resource < RLIM_NLIMITS) {
        launch->limits[resource].rlim_cur = get_u64(field->bytes + 4);
        launch->limits[resource].rlim_max = get_u64(field->bytes + 12);
        launch->limited |= 1U << resource;
    }
    return true;
}

static bool take_field(struct launch *launch, const struct field *field)
{
    switch (field->key) {
    case KEY_UID:
        if (field->length != 4)
            return false;
        launch->uid = get_u32(field->bytes);
        return true;
    case KEY_GID:
        if (field->length != 4)
            return false;
        launch->gid = get_u32(field->bytes);
        return true;
    case KEY_GROUPS:
        launch->group_count = field->length / 4;
        if (field->length % 4 != 0 ||
            launch->group_count > sizeof launch->groups / sizeof *launch->groups)
            return false;
        for (size_t i = 0; i < launch->group_count; i++)
            launch->groups[i] = get_u32(field->bytes + 4 * i);
        return true;
    case KEY_TTY:
        if (field->length != 4)
            return false;
        launch->terminal = true;
        launch->rows = get_u16(field->bytes);
        launch->columns = get_u16(field->bytes + 2);
        return true;
    case KEY_BUILTIN:
        launch->builtin = true;
        return true;
    case KEY_TELLING:
        launch->tells_fallback = true;
        return true;
    case KEY_MERGED:
        launch->merged = true;
        return true;
    case KEY_HELD:
        launch->held = true;
        return true;
    case KEY_UMASK:
        if (field->length != 4)
            return false;
        launch->mask = get_u32(field->bytes) & 0777;
        return true;
    case KEY_LIMIT:
        return take_limit(launch, field);
    case KEY_FILE:
        if (launch->file_count == FILES_LIMIT || !furnishing_valid(field))
            return false;
        launch->files[launch->file_count++] = *field;
        return true;
    case KEY_TEMPORARY:
        return field->length < PATH_MAX && memchr(field->bytes, 0, field->length) == NULL;
    case KEY_ARG:
    case KEY_ENV:
    case KEY_CWD:
        return memchr(field->bytes, 0, field->length) == NULL;
    default:
        return true;
    }
}

int launch_parse(struct launch *launch, const uint8_t *payload, size_t length)
{
    struct field_cursor cursor = {payload, length};
    struct field field;
    size_t args = 0, environment = 0, text = 0;
    int taken;

    memset(launch, 0, sizeof *launch);
    launch->mask = 022;
    while ((taken = field_next(&cursor, &field)) > 0) {
        if (!take_field(launch, &field))
            return EBADMSG;
        args += field.key == KEY_ARG;
        environment += field.key == KEY_ENV;
        if (field.key == KEY_ARG || field.key == KEY_ENV || field.key == KEY_CWD ||
            field.key == KEY_TEMPORARY)
            text += field.length + 1;
    }
    if (taken < 0 || args == 0)
        return EBADMSG;

    char **pointers = malloc((args + environment + 2) * sizeof *pointers + text);
    if (pointers == NULL)
        return ENOMEM;
    launch->memory = pointers;
    launch->argv = pointers;
    launch->envp = pointers + args + 1;
    char *at = (char *)(launch->envp + environment + 1);
    size_t arg = 0, variable = 0;
    cursor = (struct field_cursor){payload, length};
    while (field_next(&cursor, &field) > 0) {
        if (field.key == KEY_ARG)
            launch->argv[arg++] = at;
        else if (field.key == KEY_ENV)
            launch->envp[variable++] = at;
        else if (field.key == KEY_CWD && launch->cwd == NULL)
            launch->cwd = at;
        else if (field.key == KEY_CWD)
            launch->fallback = at;
        else if (field.key == KEY_TEMPORARY)
            launch->temporary = at;
        else
            continue;
        memcpy(at, field.bytes, field.length);
        at[field.length] = 0;
        at += field.length + 1;
    }
    launch->argv[arg] = NULL;
    launch->envp[variable] = NULL;
    if (launch->temporary != NULL && !path_plain(launch->temporary)) {
        launch_free(launch);
        return EBADMSG;
    }
    return 0;
}

void launch_free(struct launch *launch)
{
    free(launch->memory);
    launch->memory = NULL;
}

void launch_sentence(const struct launch_failure *failure, char *to, size_t size)
{
    const char *what = "the command could not be run";

    if (failure->step == STEP_CWD)
        what = "the working directory could not be entered";
    else if (failure->step == STEP_IDENTITY)
        what = "the command's user could not be taken on";
    else if (failure->step == STEP_TERMINAL)
        what = "the terminal could not be set up";
    else if (failure->step == STEP_FURNISH)
        what = "the command's files could not be put into the machine";
    snprintf(to, size, "%s: %s", what, strerror(failure->error));
}

static _Noreturn void give_up(int status, int error, enum launch_step step)
{
    struct launch_failure failure = {error, step};
    ssize_t written = write(status, &failure, sizeof failure);

    (void)written; /* a missing record reads as exit code 127, which is right as well */
    _exit(127);
}

/* A script without #! is the shell's, as every shell and execvp have it. */
static void run_as_script(const char *path, const struct launch *launch)
{
    size_t count = 0;

    while (launch->argv[count] != NULL)
        count++;
    char **argv = malloc((count + 2) * sizeof *argv);
    if (argv == NULL)
        return;
    argv[0] = "/bin/sh";
    argv[1] = (char *)path;
    memcpy(argv + 2, launch->argv + 1, count * sizeof *argv);
    execve(argv[0], argv, launch->envp);
}

static int try_program(const char *path, const struct launch *launch)
{
    struct stat found;

    execve(path, launch->argv, launch->envp);
    if (errno == ENOEXEC)
        run_as_script(path, launch);
    else if (errno == EACCES && stat(path, &found) == 0 && S_ISDIR(found.st_mode))
        return EISDIR;
    return errno;
}

static int execute(const struct launch *launch)
{
    const char *name = launch->argv[0];
    const char *path = default_path;
    char candidate[PATH_MAX];
    int error = ENOENT;

    if (*name == 0)
        return ENOENT;
    if (strchr(name, '/') != NULL)
        return try_program(name, launch);
    for (char **variable = launch->envp; *variable != NULL; variable++) {
        if (strncmp(*variable, "PATH=", 5) == 0)
            path = *variable + 5;
    }
    for (;;) {
        size_t length = strcspn(path, ":");
        int used = snprintf(candidate, sizeof candidate, "%.*s%s%s", (int)length, path,
                            length > 0 ? "/" : "", name);

        if (used > 0 && (size_t)used < sizeof candidate) {
            int failure = try_program(candidate, launch);

            /* one that may not be run is remembered, while a later directory may have a better */
            if (failure == EACCES)
                error = EACCES;
            else if (failure != ENOENT && failure != ENOTDIR && failure != EISDIR)
                return failure;
        }
        if (path[length] == 0)
            return error;
        path += length + 1;
    }
}

static _Noreturn void run_builtin(const struct launch *launch)
{
    int count = 0;
    unsigned first = BUILTIN_LAYER;

    if (writable_layer >= 0 && geteuid() == 0 && dup2(writable_layer, BUILTIN_LAYER) >= 0)
        first++;
    /* no exec will close what the program has open */
    syscall(SYS_close_range, first, ~0U, 0);
    while (launch->argv[count] != NULL)
        count++;
    _exit(builtin_main(count, launch->argv));
}

/* Anybody's name of a directory, on anybody's terminal. */
static void print_name(const char *name)
{
    for (const unsigned char *at = (const unsigned char *)name; *at != 0; at++)
        dprintf(STDERR_FILENO, *at < ' ' || *at >= 0x7f ? "\\x%02x" : "%c", *at);
}

static void start_elsewhere(const struct launch *launch, int status)
{
    int error = errno;

    if (launch->fallback == NULL || chdir(launch->fallback) < 0)
        give_up(status, error, STEP_CWD);
    if (!launch->tells_fallback)
        return;
    dprintf(STDERR_FILENO, "encamp: In this machine ");
    print_name(launch->cwd);
    dprintf(STDERR_FILENO, " cannot be entered (%s): it begins in '%s'.\n", strerror(error),
            launch->fallback);
}

static void wait_for_word(int go)
{
    char word;
    ssize_t count;

    do
        count = read(go, &word, 1);
    while (count < 0 && errno == EINTR);
    if (count != 1)
        _exit(127); /* nobody wants it any more */
}

void launch_alone(void)
{
    setsid();
    surroundings_leave();
}

static _Noreturn void go_on(const struct launch *launch, const int fds[3], int status, int go)
{
    int error = furnish(launch);

    surroundings_take(launch);
    if (error != 0)
        give_up(status, error, STEP_FURNISH);
    if (launch->terminal) {
        struct winsize size = {.ws_row = launch->rows, .ws_col = launch->columns};

        if (ioctl(fds[0], TIOCSCTTY, 0) < 0)
            give_up(status, errno, STEP_TERMINAL);
        ioctl(fds[0], TIOCSWINSZ, &size);
        if (fchown(fds[0], launch->uid, (gid_t)-1) < 0 && geteuid() == 0 && in_machine)
            give_up(status, errno, STEP_TERMINAL);
        for (int fd = 0; fd < 3; fd++)
            dup2(fds[0], fd);
    } else {
        for (int fd = 0; fd < 3; fd++)
            dup2(fds[fd], fd);
    }
    if (geteuid() == 0 && (setgroups(launch->group_count, launch->groups) < 0 ||
                           setgid(launch->gid) < 0 || setuid(launch->uid) < 0))
        give_up(status, errno, STEP_IDENTITY);
    if (launch->cwd != NULL && chdir(launch->cwd) < 0)
        start_elsewhere(launch, status);
    if (launch->held)
        wait_for_word(go);
    if (launch->builtin) {
        if (!builtin_knows(launch->argv[0]))
            give_up(status, ENOENT, STEP_EXEC);
        run_builtin(launch);
    }
    give_up(status, execute(launch), STEP_EXEC);
}

_Noreturn void launch_child(const struct launch *launch, const int fds[3], int status, int go)
{
    launch_alone();
    go_on(launch, fds, status, go);
}

_Noreturn void launch_when_told(const uint8_t *payload, const size_t *length, const int fds[3],
                                int status, int go)
{
    struct launch launch;
    int files[3];

    wait_for_word(go);
    int error = launch_parse(&launch, payload, *length);
    if (error != 0)
        give_up(status, error, STEP_EXEC);
    memcpy(files, fds, sizeof files);
    if (launch.merged)
        files[2] = files[1];
    go_on(&launch, files, status, go);
}
