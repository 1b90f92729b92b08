/* Requests of the kernel that the relay answers by itself: the way to the host and back takes
   longer than what is done at its ends. */
#ifndef ENCAMP_SHORTCUT_H
#define ENCAMP_SHORTCUT_H

#include <linux/fuse.h>
#include <stdbool.h>
#include <stddef.h>

/* Look at a request, and answer it if the server need not see it; false: it must. */
bool shortcut_taken(const struct fuse_in_header *in);
/* The server wants to hear of files that are closed. */
void shortcut_closes(void);
/* The server has sent these bytes of a `struct wire_hint`, */
void shortcut_hint(const char *bytes);
/* or a notification with this body, after which a hint may be out of date. */
void shortcut_notified(const char *body, size_t length);

#endif
