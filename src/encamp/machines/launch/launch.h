/* What the parts of the launcher share. Every function ends the process with a sentence on
 * standard error when it cannot do its work: a machine is started right or not at all. */
#ifndef ENCAMP_LAUNCH_H
#define ENCAMP_LAUNCH_H

#include <stdbool.h>
#include <sys/types.h>

struct share {
	const char *source;   /* directory of the host */
	const char *target;   /* where the process finds it */
	bool readonly;
};

/* A file or directory that the process may open, with all that is below it. */
struct place {
	const char *path;
	enum { READABLE, WRITABLE, WORKPLACE, DEVICE } kind;
};

void fail(const char *what, const char *about) __attribute__((noreturn));

/* A user namespace in which `uid` and `gid` of the host are 0, and all others themselves. */
int namespace_for(uid_t uid, gid_t gid);

/* Attach the shares in a mount namespace of our own: they vanish with the process. */
void attach_shares(const struct share *shares, int count, int user_namespace);

/* Become an ordinary user, for good; in one more group if that is not 0. */
void become(uid_t uid, gid_t gid, gid_t group);
void become_inside(int user_namespace, gid_t group);
void give_up_capabilities(void);

/* Open nothing but these places, and what is open already: if the kernel has Landlock. The rest of
 * what follows needs no_new_privs, as this does. */
void confine_files(const struct place *places, int count);

/* Reach no other process: send it no signal, nor see or change its memory or limits. With `traces` that
 * is left to Landlock, as far as it is about children of its own. */
void refuse_neighbours(bool traces);
/* Not be told by fanotify either, which the share server needs. */
void refuse_watching(void);
/* Change no file's owner, mode or attributes. */
void refuse_attributes(void);
/* Make no sockets, or only those of the internet. */
void refuse_sockets(bool internet_too);
/* From now on no file can be made setuid (or setgid). */
void refuse_modes(bool setgid_too);

/* Have a library of ours loaded into the program: see preload.c. */
void preload(void);

#endif
