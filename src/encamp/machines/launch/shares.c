/* Root's shares for a process that is not root.
 *
 * Each shared directory is attached once more, in a mount namespace of the process's own, with
 * its owners mapped: root's files there belong to the machine's user, and what the machine's user
 * writes there is root's on disk. Nothing but the shared directory is opened up that way, and the
 * kernel takes the mounts away when the process ends, however it ends.
 */
#define _GNU_SOURCE
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Not in Debian 12's <sys/mount.h> together with the kernel's header; numbers are the kernel's. */
struct attributes {
	uint64_t set, clear, propagation, user_namespace;
};
#define ATTRIBUTE_READONLY 0x00000001
#define ATTRIBUTE_NOSUID   0x00000002
#define ATTRIBUTE_NODEV    0x00000004
#define ATTRIBUTE_IDMAP    0x00100000
#define TREE_CLONE         1
#define MOVE_EMPTY_SOURCE  0x00000004

static void attach(const struct share *share, int user_namespace)
{
	int tree = syscall(SYS_open_tree, AT_FDCWD, share->source, TREE_CLONE | O_CLOEXEC);
	if (tree < 0)
		fail("cannot share", share->source);
	struct attributes attributes = {
		.set = ATTRIBUTE_NOSUID | ATTRIBUTE_NODEV | ATTRIBUTE_IDMAP,
		.user_namespace = user_namespace,
	};
	if (share->readonly)
		attributes.set |= ATTRIBUTE_READONLY;
	if (syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attributes, sizeof attributes) < 0)
		fail("the file system cannot map owners (idmapped mounts), which root's shares need:",
		     share->source);
	if (syscall(SYS_move_mount, tree, "", AT_FDCWD, share->target, MOVE_EMPTY_SOURCE) < 0)
		fail("cannot attach", share->source);
	close(tree);
}

void attach_shares(const struct share *shares, int count, int user_namespace)
{
	if (unshare(CLONE_NEWNS) < 0)
		fail("cannot make", "a mount namespace");
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		fail("cannot make private", "the mount namespace");
	for (int i = 0; i < count; i++)
		attach(&shares[i], user_namespace);
}
