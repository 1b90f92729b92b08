/* The machine's own list of users and groups. */
#ifndef ENCAMP_USERS_H
#define ENCAMP_USERS_H

#include <stddef.h>
#include <stdint.h>

/* 0, or an errno and a sentence in `text`. */
int users_add(const uint8_t *payload, size_t length, char *text, size_t size);

#endif
