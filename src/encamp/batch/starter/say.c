#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "starter.h"

static void put(const char *text, size_t length)
{
    while (length > 0) {
        ssize_t written = write(2, text, length);

        if (written <= 0)
            return; /* there is nobody left to tell */
        text += written;
        length -= (size_t)written;
    }
}

/* In one piece where it fits, so that what others write does not come between. */
void say_bytes(const uint8_t *text, size_t length)
{
    char line[4096] = "encamp: ";
    size_t used = strlen(line);

    while (length > 0 && text[length - 1] == '\n')
        length--;
    for (size_t i = 0; i < length; i++) {
        if (used >= sizeof line - 1) {
            put(line, used);
            used = 0;
        }
        line[used++] = text[i] == 0 ? ' ' : (char)text[i];
    }
    line[used++] = '\n';
    put(line, used);
}

static uint64_t digest(const uint8_t *text, size_t length)
{
    uint64_t value = 14695981039346656037u;

    for (size_t i = 0; i < length; i++)
        value = (value ^ text[i]) * 1099511628211u;
    return value;
}

/* Who waits for long is told why once, and not each time that it asks. */
void say_news(const uint8_t *text, size_t length)
{
    static uint64_t last;
    uint64_t mine = digest(text, length);

    if (mine != last)
        say_bytes(text, length);
    last = mine;
}

void say_once(const uint8_t *text, size_t length)
{
    static uint64_t said[4];
    static unsigned next;
    uint64_t mine = digest(text, length);

    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        if (said[i] == mine)
            return;
    }
    said[next++ % (sizeof said / sizeof *said)] = mine;
    say_bytes(text, length);
}

static void say_list(const char *format, va_list list)
{
    char text[2048];
    int length = vsnprintf(text, sizeof text, format, list);

    if (length > 0)
        say_bytes((const uint8_t *)text, strnlen(text, sizeof text));
}

void say(const char *format, ...)
{
    va_list list;

    va_start(list, format);
    say_list(format, list);
    va_end(list);
}

void fail(int code, const char *format, ...)
{
    va_list list;

    va_start(list, format);
    say_list(format, list);
    va_end(list);
    _exit(code);
}
