#define _GNU_SOURCE
#include "hosts.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "files.h"

enum { HOSTS_LIMIT = 65536 };

/* Behind each line of ours that is not about the loopback: what an image was saved from is not what
   its machines are. */
#define MARK "\t# of this machine"

static bool is_ours(const char *line, size_t length)
{
    size_t mark = strlen(MARK);

    return strncmp(line, "127.0.1.1", 9) == 0 ||
           (length > mark && strncmp(line + length - mark, MARK, mark) == 0);
}

/* The next line of `text`, and what comes after it. */
static const char *next_line(const char **text, size_t *length)
{
    const char *line = *text;

    *length = strcspn(line, "\n");
    *text = line + *length + (line[*length] == '\n');
    return line;
}

int hosts_write(const char *address, const char *name, const char *more)
{
    static char before[HOSTS_LIMIT], after[3 * HOSTS_LIMIT];
    const char *rest = before;
    size_t used = 0, length;
    bool loopback = strncmp(address, "127.", 4) == 0;

    if (!file_read("/etc/hosts", before, sizeof before))
        strcpy(before, "127.0.0.1\tlocalhost\n");
    while (*rest != 0) {
        const char *line = next_line(&rest, &length);

        if (!is_ours(line, length))
            used += (size_t)sprintf(after + used, "%.*s\n", (int)length, line);
    }
    used += (size_t)snprintf(after + used, sizeof after - used, "%s\t%s%s\n", address, name,
                             loopback ? "" : MARK);
    while (*more != 0) {
        const char *line = next_line(&more, &length);

        if (used + length + sizeof MARK + 1 > sizeof after)
            return EFBIG;
        used += (size_t)sprintf(after + used, "%.*s%s\n", (int)length, line, MARK);
    }
    return file_write("/etc/hosts", after, used, 0644);
}
