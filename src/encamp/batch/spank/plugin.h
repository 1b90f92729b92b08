/* A SPANK plug-in of Slurm: tasks that ask for an environment are started by Encamp's starter.
   In plugstack.conf:

     optional /PATH/encamp_spank.so /PATH/encamp-starter [comment=yes]

   comment=yes: also tasks of srun whose job carries env:NAME in its comment. */
#ifndef ENCAMP_SPANK_H
#define ENCAMP_SPANK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NAME_LIMIT = 64 };

/* name.c */
bool name_is_good(const char *name);
/* The environment that a job's comments name: what the site noted, or else what its user wrote. */
bool name_in_comments(const char *noted, const char *written, char name[NAME_LIMIT + 1]);

/* job.c: 0, or -1 if Slurm does not tell. Empty: none. */
int name_of_job(uint32_t id, char name[NAME_LIMIT + 1]);

#endif
