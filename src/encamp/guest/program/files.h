/* Small files and directories of the machine. */
#ifndef ENCAMP_FILES_H
#define ENCAMP_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* The whole file as a string; false if it cannot be read or does not fit. */
bool file_read(const char *path, char *to, size_t size);
/* In place: a third of the work of replacing it, which a clone's first command waits for. */
int file_write(const char *path, const char *bytes, size_t count, mode_t mode);
/* At its end, all at once: whoever reads it finds all of that or nothing. */
int file_append(const char *path, const char *bytes, size_t count);
/* A new one; EEXIST if there is any. If it cannot be written whole, there is none. */
int file_create(const char *path, const char *bytes, size_t count, mode_t mode);
/* The new content is there whole or not at all. 0 or an errno; a symbolic link is replaced. */
int file_replace(const char *path, const char *bytes, size_t count, mode_t mode);
/* Like `mkdir -p`; 0 or an errno. */
int directory_make(const char *path, mode_t mode);
/* Absolute, and without `..`. */
bool path_plain(const char *path);
/* A sentence, if the machine has no room left for what is written: for a command that has failed. */
void disk_tell(char *text, size_t room);

#endif
