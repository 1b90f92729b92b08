/* The host's directories: one file system, whose messages a relay carries to the host. */
#ifndef ENCAMP_MOUNTS_H
#define ENCAMP_MOUNTS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* 0, or an errno and a sentence in `text`. */
int mounts_add(const uint8_t *payload, size_t length, char *text, size_t size);
/* Every share, the last mounted first. */
int mounts_remove(char *text, size_t size);
/* The relay's process, which has to outlive all that may use a share; 0: there is none. */
pid_t mounts_relay(void);
/* A child has ended that was no command. */
void mounts_reaped(pid_t pid, int wait_status);

#endif
