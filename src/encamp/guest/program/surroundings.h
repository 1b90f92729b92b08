/* What a command finds around it that is not its own: signals, umask, limits, priority. */
#ifndef ENCAMP_SURROUNDINGS_H
#define ENCAMP_SURROUNDINGS_H

#include "launch.h"

/* In the child, while it has the program's rights. */
void plain_surroundings(const struct launch *launch);

#endif
