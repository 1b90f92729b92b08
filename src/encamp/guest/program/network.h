/* The machine's one network interface. */
#ifndef ENCAMP_NETWORK_H
#define ENCAMP_NETWORK_H

#include <stddef.h>
#include <stdint.h>

/* 0, or an errno and a sentence in `text`. */
int network_set(const uint8_t *payload, size_t length, char *text, size_t size);
/* Give the machine its loopback interface. */
void network_loopback(void);

#endif
