/* Writing an archive to stdout, an entry at a time. */
#ifndef ENCAMP_ARCHIVE_WRITE_H
#define ENCAMP_ARCHIVE_WRITE_H

#include <sys/stat.h>

#include "archive.h"

extern bool archive_broken;               /* nobody reads the archive any more */
extern char archive_name[NAME_LIMIT + 1]; /* of the entry being packed, grown and cut by a walk */

void archive_begin(void);
/* Returns the exit code of whoever packed. */
int archive_end(void);
void archive_put(const void *bytes, size_t count);
/* `status` may be NULL. */
void archive_entry(enum entry_kind kind, const struct stat *status, const char *link,
                   size_t link_length, const uint8_t *attributes, size_t attribute_length);
void archive_problem(const char *sentence);
/* Let everything in a directory be packed, whose descriptor is closed then. */
void archive_below(int fd, unsigned depth,
                   void (*pack)(int directory, const char *name, unsigned depth));
/* The extended attributes that are wanted, to `to`, which has room for XATTR_LIMIT bytes; those
   that do not fit are left out. Returns how many bytes. */
size_t archive_attributes(int fd, bool (*wanted)(const char *key), uint8_t *to);
/* The name under which this file was packed before, or NULL; then it is remembered. When too many
   are, further links are packed as files of their own: larger, but right. */
const char *archive_earlier(const struct stat *status);
/* `exact`: as many bytes as the file had, whatever is done to it meanwhile. */
void archive_content(int fd, const struct stat *status, bool exact);

#endif
