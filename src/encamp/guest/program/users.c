#define _GNU_SOURCE
#include "users.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "console.h"
#include "files.h"
#include "frames.h"

enum { WORD_LIMIT = 256, NAMES_LIMIT = 16384, LIST_LIMIT = 1 << 20, LINE_LIMIT = PATH_MAX + 4 * WORD_LIMIT };

static const char root_passwd[] = "root:*:0:0:root:/root:/bin/sh\n";
static const char root_group[] = "root:*:0:\n";

static bool word_valid(const char *word)
{
    return *word != 0 && *word != '-' && *word != '+' && strpbrk(word, ":\n,/ \t") == NULL;
}

/* Is this number (third column), or this name (first), in the list already? Both in one line? */
static void look_up(const char *list, uint32_t number, const char *name, bool *has_number,
                    bool *has_name, bool *has_both)
{
    size_t length = strlen(name);

    *has_number = *has_name = *has_both = false;
    while (*list != 0) {
        size_t line = strcspn(list, "\n");
        const char *colon = memchr(list, ':', line);
        const char *second = colon == NULL
                                 ? NULL
                                 : memchr(colon + 1, ':', line - (size_t)(colon + 1 - list));

        bool same_number = second != NULL && second[1] >= '0' && second[1] <= '9' &&
                           strtoul(second + 1, NULL, 10) == number;
        bool same_name = line > length && strncmp(list, name, length) == 0 && list[length] == ':';

        *has_number |= same_number;
        *has_name |= same_name;
        *has_both |= same_number && same_name;
        list += line + (list[line] == '\n');
    }
}

/* Add a line unless the number is known. A name that another number has gets the number added, so
   that looking it up by name still finds the one the image meant; or, if name and number must go
   together, EEXIST. */
static int add_line(const char *path, const char *missing, const char *name, uint32_t number,
                    const char *rest, bool exact)
{
    bool has_number, has_name, has_both;
    char line[LINE_LIMIT];
    /* to get that much anew and give it back is slow the first time in each clone */
    static char list[LIST_LIMIT];
    int error = 0;

    if (!file_read(path, list, LIST_LIMIT)) {
        error = access(path, F_OK) == 0 ? EFBIG : file_replace(path, missing, strlen(missing), 0644);
        if (error != 0)
            return error;
        strcpy(list, missing);
    }
    look_up(list, number, name, &has_number, &has_name, &has_both);
    if (exact && !has_both && (has_number || has_name)) {
        error = EEXIST;
    } else if (!has_number) {
        size_t length = strlen(list), used = 0;

        if (length > 0 && list[length - 1] != '\n')
            line[used++] = '\n';
        used += (size_t)snprintf(line + used, WORD_LIMIT, "%s", name);
        if (has_name)
            used += (size_t)sprintf(line + used, "_%u", number);
        used += (size_t)snprintf(line + used, LINE_LIMIT - 2 * WORD_LIMIT, ":*:%u:%s\n", number,
                                 rest);
        error = file_append(path, line, used);
    }
    return error;
}

/* The other groups of a user, a line "NUMBER:NAME" each. They are for people to read: what makes no
   sense is left out. */
static int add_groups(char *names)
{
    char *rest = names, *line;
    int error = 0;

    while (error == 0 && (line = strsep(&rest, "\n")) != NULL) {
        char *name;
        unsigned long number = strtoul(line, &name, 10);

        if (name != line && *name++ == ':' && number < UINT32_MAX && word_valid(name) &&
            strlen(name) < WORD_LIMIT / 2)
            error = add_line("/etc/group", root_group, name, (uint32_t)number, "", false);
    }
    return error;
}

static int make_home(const char *home, uid_t uid, gid_t gid)
{
    struct stat found;

    if (stat(home, &found) == 0)
        return 0;
    int error = directory_make(home, 0700);
    if (error == 0 && chown(home, uid, gid) < 0)
        error = errno;
    return error;
}

int users_add(const uint8_t *payload, size_t length, char *text, size_t size)
{
    char name[WORD_LIMIT / 2], group[WORD_LIMIT / 2], shell[WORD_LIMIT], home[PATH_MAX];
    char rest[LINE_LIMIT];
    static char names[NAMES_LIMIT];
    uint32_t uid, gid;
    struct field field;
    bool exact = field_find(payload, length, KEY_EXACT, &field);

    if (!field_text(payload, length, KEY_NAME, name, sizeof name) ||
        !field_text(payload, length, KEY_GROUP, group, sizeof group) ||
        !field_text(payload, length, KEY_HOME, home, sizeof home) ||
        !field_text(payload, length, KEY_SHELL, shell, sizeof shell) ||
        !field_u32(payload, length, KEY_UID, &uid) || !field_u32(payload, length, KEY_GID, &gid) ||
        !word_valid(name) || !word_valid(group) || !path_plain(home) || !path_plain(shell) ||
        strpbrk(home, ":\n") != NULL || strpbrk(shell, ":\n") != NULL) {
        snprintf(text, size, "a user needs a name, a group, a home directory and a shell");
        return EINVAL;
    }
    if (!in_machine)
        return 0;
    int error = add_line("/etc/group", root_group, group, gid, "", false);
    if (error == 0 && field_text(payload, length, KEY_GROUP_NAMES, names, sizeof names))
        error = add_groups(names);
    if (error == 0) {
        snprintf(rest, sizeof rest, "%u::%s:%s", gid, home, shell);
        error = add_line("/etc/passwd", root_passwd, name, uid, rest, exact);
    }
    if (error == 0)
        error = make_home(home, uid, gid);
    if (error == EEXIST)
        snprintf(text, size, "the machine has the name '%s' with another number, or the number %u "
                             "with another name", name, uid);
    else if (error != 0)
        snprintf(text, size, "user '%s' could not be added: %s", name, strerror(error));
    return error;
}
