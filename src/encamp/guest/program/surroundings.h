/* What a command finds around it that is not its own: signals, umask, limits, priority. */
#ifndef ENCAMP_SURROUNDINGS_H
#define ENCAMP_SURROUNDINGS_H

#include "launch.h"

/* In the child, while it has the program's rights: what the program has that no command shall. */
void surroundings_leave(void);
/* And what this command is to have. */
void surroundings_take(const struct launch *launch);

#endif
