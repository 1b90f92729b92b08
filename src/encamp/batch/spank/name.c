#include <string.h>

#include "plugin.h"

static const char digits_and_letters[] =
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

bool name_is_good(const char *name)
{
    size_t length = strlen(name);

    if (length == 0 || length > NAME_LIMIT || strchr(digits_and_letters, name[0]) == NULL)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (strchr(digits_and_letters, name[i]) == NULL && strchr("._-", name[i]) == NULL)
            return false;
    }
    return true;
}

/* The word that begins with `mark`. */
static bool take_word(const char *text, const char *mark, char name[NAME_LIMIT + 1])
{
    static const char between[] = " \t\n,;";

    for (text += strspn(text, between); *text != 0; text += strspn(text, between)) {
        size_t length = strcspn(text, between), skip = strlen(mark);

        if (length > skip && length - skip <= NAME_LIMIT && strncmp(text, mark, skip) == 0) {
            memcpy(name, text + skip, length - skip);
            name[length - skip] = 0;
            return true;
        }
        text += length;
    }
    return false;
}

bool name_in_comments(const char *noted, const char *written, char name[NAME_LIMIT + 1])
{
    return (noted != NULL && take_word(noted, "env=", name)) ||
           (written != NULL && take_word(written, "env:", name));
}
