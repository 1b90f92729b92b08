/* Directories an archive is unpacked into: entered one component at a time, never through a
   symbolic link, and given their own modes and times only when they are left. */
#ifndef ENCAMP_ARCHIVE_TREE_H
#define ENCAMP_ARCHIVE_TREE_H

#include <sys/types.h>

#include "archive.h"

/* Begin at `destination`, which is made if need be. 0 or an errno. */
int tree_begin(const char *destination);
/* Enter the directory that `name` is in and say what its last component is called there. Returns
   the directory's descriptor, which stays the tree's, or -1 with errno. */
int tree_enter(const char *name, const char **last);
/* The same for an earlier entry, without leaving where we are; the descriptor is the caller's. */
int tree_peek(const char *name, const char **last);
/* Make (or take) directory `name` and go in. Returns its descriptor or -1 with errno. */
int tree_make(const char *name, const struct entry *entry);
/* Leave everything, so that all modes and times are in place. 0 or the first errno. */
int tree_end(void);

#endif
