/* What a command finds in the machine that came with it: its files, and its temporary directory. */
#ifndef ENCAMP_FURNISHING_H
#define ENCAMP_FURNISHING_H

#include <stdbool.h>

#include "frames.h"
#include "launch.h"

/* Is this a file that can be put somewhere: u32 mode, its path, a zero byte, its content? */
bool furnishing_valid(const struct field *file);
/* In the child, before its limits hold: they are not meant for this. 0 or an errno. */
int furnish(const struct launch *launch);

#endif
