/* What the parts of the share server share: see main.c for what it is and main.c's loop for when
 * which part is called. There is one thread but for those that wait for a lock. */
#ifndef ENCAMP_SHARES_SERVER_H
#define ENCAMP_SHARES_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "wire.h"

void fail(const char *what, const char *about) __attribute__((noreturn));

/* ── channel.c: what comes from the guest, and what goes to it ───────────────────────────────── */

struct request {
	const struct fuse_in_header *head;
	const uint8_t *body;   /* what follows the header in the stream; behind it is a zero */
	size_t size;           /* bytes of that */
	uint8_t *slot;         /* of the window: filled with the rest of the message, or lent */
	uint32_t filled;       /* bytes in it */
	uint32_t slot_number;
};

void channel_open(int channel, int window);
/* The next message that is here whole; false if more has to come. A guest that breaks the stream's
 * rules has nobody to speak to any more: the process ends. */
bool channel_next(struct request *request);
/* Read what has come; the process ends when the channel has. */
void channel_read(void);
void channel_flush(void);

void answer(const struct request *request, int error, const void *data, size_t size);
/* The kernel asks once for what is not there, and does it by itself from then on. */
void answer_never(const struct request *request);
/* The answer's data is in the request's slot already. */
void answer_in_slot(const struct request *request, uint32_t size);
/* In order with the notifications before it. */
void answer_queued(uint64_t unique, int error);
void tell_hint(uint64_t nodeid, const struct fuse_attr_out *attributes);
void tell(enum wire_kind what);
enum taken_back { ATTRIBUTES, CONTENT };
/* The guest is to forget what it knows of a node: at once, without waiting for anything, */
void take_back_attributes(uint64_t nodeid);
/* or in order with the answers that are queued, */
void take_back(uint64_t nodeid, enum taken_back what);
/* or of a name. */
void take_back_name(uint64_t parent, const char *name);

/* ── nodes.c: files and directories that the guest knows ─────────────────────────────────────── */

struct link {
	struct link *next;
	uint64_t hash;
};

struct share {
	const char *source;
	bool readonly;
	bool local;            /* nobody but this host changes its files */
	struct node *node;
};

struct place;

struct node {
	struct link by_id, by_inode, by_name, by_place;
	struct node *older, *newer;
	uint64_t id;           /* never comes again */
	int fd;                /* O_PATH: all that is done with the node goes through it */
	dev_t device;
	ino_t number;
	mode_t type;
	struct share *share;
	uint64_t lookups;      /* times the guest was told of it, less those it has forgotten */
	unsigned uses;         /* handles and locks */
	uint64_t parent;       /* where it was seen last, */
	char *name;            /* by this name; NULL: nowhere, */
	bool lost;             /* since another has taken it away */
	struct place *place;   /* a directory's that is watched */
	struct timespec modified, changed; /* as it was when it was opened last, */
	off_t size;
	bool changed_here;     /* and whether the guest has changed it since, */
	bool stale;            /* or another has */
	int claim, private;    /* see locks.c: of a file by which programs share memory; else -1 */
};

#define SHARES_MOST 64
extern struct share shares[SHARES_MOST];
extern unsigned share_count;
/* One is in another, or the same: what changes by one of them is told to nobody by the other, so names are not
 * kept. */
extern bool shares_overlap;

void nodes_open(unsigned descriptors);
/* Forget all but the shares' own directories. */
void nodes_clear(void);
struct node *node_find(uint64_t id);
struct node *node_named(const struct node *parent, const char *name);
/* A watched directory by what fanotify calls it; the next one if it is shared more than once. */
struct node *node_at(const void *place, size_t size, const struct node *after);
/* The node of a name in a directory, counted as told. NULL and errno if there is none. */
struct node *node_meet(struct node *parent, const char *name, struct stat *found);
/* The same of a file that was just made, or is open. */
struct node *node_meet_open(struct node *parent, const char *name, int fd, struct stat *found);
/* So many that the guest is asked to forget some. */
bool nodes_are_many(void);
void node_forget(struct node *node, uint64_t count);
void node_use(struct node *node);
void node_leave(struct node *node);
void node_rename(struct node *node, const struct node *parent, const char *name);
void node_lose_name(struct node *node, bool by_another);
/* Do something for each that the guest knows. */
void nodes_each(void (*visit)(struct node *));
/* Open it anew, with what its mode allows now. */
int node_open(const struct node *node, int flags);
/* Its path below /proc, which leads to it whatever has become of its name. */
const char *node_path(const struct node *node);

/* ── watch.c: changes by others ──────────────────────────────────────────────────────────────── */

struct place {
	size_t size;
	uint8_t bytes[];       /* what fanotify calls the directory */
};

/* Does nobody but this host change what is below the directory? */
bool is_local(int directory);
/* A descriptor that is readable when there is something to drain; -1 if nothing can be watched. */
int watch_open(void);
void watch(struct node *directory);
void watch_end(struct node *directory);
void watch_drain(void);
bool is_watched(uint64_t directory);

/* ── attributes.c ────────────────────────────────────────────────────────────────────────────── */

/* Bits of a mode that nothing on a share is given. */
extern mode_t refused_modes;
uint64_t number_told(dev_t device, ino_t number);
void fill_attributes(const struct node *node, const struct stat *found, struct fuse_attr_out *out);
void fill_entry(const struct node *parent, const struct node *node, const struct stat *found,
                struct fuse_entry_out *out);
/* Something in the directory was just made, moved or removed. */
void tell_parent(const struct node *parent);
/* Seconds for which the guest may rely on a name, or on there being none. */
uint64_t name_lasts(const struct node *parent);

/* ── files.c: handles ────────────────────────────────────────────────────────────────────────── */

struct handle {
	int fd;
	struct node *node;     /* NULL: free */
	uint32_t serial;
	bool appends, writes;
	off_t position;        /* in a directory */
};

struct handle *handle_find(const struct node *node, uint64_t number);
/* -1 with errno, and the descriptor closed, if there are too many. */
int handle_open(struct node *node, int fd, int flags, uint64_t *number);
void handles_clear(void);

/* ── locks.c ─────────────────────────────────────────────────────────────────────────────────── */

/* A descriptor that is readable when a lock that was waited for is there; in `locks_settle`. */
int locks_open(void);
void locks_settle(void);
/* Milliseconds until `locks_settle` is to be called in any case; -1: never. */
int locks_deadline(void);
void locks_drop_owner(struct node *node, uint64_t owner);
void locks_drop_handle(const struct handle *handle);
/* Let nobody but this machine use the file, if nobody does. */
bool lock_claim(struct node *node);
void lock_unclaim(struct node *node);
void locks_clear(void);

/* ── operations.c: which function does what ──────────────────────────────────────────────────── */

void operate(const struct request *request);

typedef void operation(const struct request *request, struct node *node);
operation do_lookup, do_getattr, do_setattr, do_readlink, do_symlink, do_mknod, do_mkdir, do_unlink,
	do_rmdir, do_rename, do_rename2, do_link, do_open, do_read, do_write, do_statfs, do_release,
	do_fsync, do_setxattr, do_getxattr, do_listxattr, do_removexattr, do_flush, do_opendir,
	do_readdir, do_readdirplus, do_releasedir, do_getlk, do_setlk, do_setlkw, do_create,
	do_fallocate, do_lseek, do_copy_file_range;
void do_interrupt(const struct request *request);

/* The zero-terminated text at an offset of the body; NULL if there is none. */
const char *text_at(const struct request *request, size_t offset);
/* One that can be the name of something in a directory; NULL with errno. */
const char *name_at(const struct request *request, size_t offset);
/* 0, or the error that changes meet there. */
int refusal(const struct node *node);

#endif
