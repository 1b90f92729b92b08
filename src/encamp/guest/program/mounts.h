/* The host's directories, shared over 9p. */
#ifndef ENCAMP_MOUNTS_H
#define ENCAMP_MOUNTS_H

#include <stddef.h>
#include <stdint.h>

/* 0, or an errno and a sentence in `text`. */
int mounts_add(const uint8_t *payload, size_t length, char *text, size_t size);
/* Every share, the last mounted first. */
int mounts_remove(char *text, size_t size);

#endif
