/* The child's half of EXEC: from fork to the command's first instruction. */
#ifndef ENCAMP_LAUNCH_H
#define ENCAMP_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "frames.h"

enum { FILES_LIMIT = 8 };

/* An EXEC payload, taken apart. argv and envp live in one allocation. */
struct launch {
    char **argv;
    char **envp;
    char *cwd;
    char *fallback; /* where it starts if it cannot start in `cwd` */
    bool tells_fallback; /* on its standard error */
    uid_t uid;
    gid_t gid;
    gid_t groups[64];
    size_t group_count;
    bool terminal;
    uint16_t rows;
    uint16_t columns;
    bool builtin;
    bool merged; /* both outputs are one pipe */
    bool held;   /* it is made ready, and begins when it is told to */
    mode_t mask;
    struct rlimit limits[RLIM_NLIMITS];
    uint32_t limited; /* which of them were given, a bit each */
    struct field files[FILES_LIMIT]; /* in the payload, which must last until the child is made */
    size_t file_count;
    char *temporary; /* the directory that the command's TMPDIR names, if it is to be made */
    void *memory;
};

enum launch_step { STEP_CWD = 1, STEP_IDENTITY, STEP_TERMINAL, STEP_FURNISH, STEP_EXEC };

/* What a child that could not be started writes to its status pipe. */
struct launch_failure {
    int error;
    int step;
};

/* 0, or an errno: EBADMSG malformed, E2BIG, ENOMEM. */
int launch_parse(struct launch *launch, const uint8_t *payload, size_t length);
void launch_free(struct launch *launch);
/* In the child. `fds` become 0, 1, 2; of a terminal only fds[0], its slave side, is given. One that
   is held begins when a byte comes from `go`, and ends when none can come any more. */
_Noreturn void launch_child(const struct launch *launch, const int fds[3], int status, int go);
/* The same in two steps, for a child that is there before its command: what needs no command, */
void launch_alone(void);
/* and, when a first byte has come from `go`, all else. */
_Noreturn void launch_when_told(const uint8_t *payload, const size_t *length, const int fds[3],
                                int status, int go);
void launch_sentence(const struct launch_failure *failure, char *to, size_t size);

#endif
