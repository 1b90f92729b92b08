/* Commands that the guest program does itself, so that an image need not bring them along. */
#ifndef ENCAMP_BUILTINS_H
#define ENCAMP_BUILTINS_H

#include <stdbool.h>

/* The descriptor of the machine's writable layer, where root's builtins find it. */
enum { BUILTIN_LAYER = 3 };

bool builtin_knows(const char *name);
/* Returns the exit code. */
int builtin_main(int argc, char **argv);

#endif
