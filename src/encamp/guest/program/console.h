/* The program's own messages: to the machine's console, or stderr when it runs elsewhere. */
#ifndef ENCAMP_CONSOLE_H
#define ENCAMP_CONSOLE_H

#include <stdbool.h>
#include <stdint.h>

extern bool in_machine; /* false under --socket: nothing outside this process may be changed */

void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Say why, then switch the machine off (or exit, when this is not a machine). */
void fatal(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/* Milliseconds of a clock that only goes forward. */
uint64_t now_ms(void);

#endif
