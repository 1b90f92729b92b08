/* Names in directories: looked up, made, moved, removed. */
#define _GNU_SOURCE
#include "server.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Not in musl. */
#ifndef RENAME_EXCHANGE
#define RENAME_NOREPLACE 1
#define RENAME_EXCHANGE 2
#endif

void do_lookup(const struct request *request, struct node *parent)
{
	struct fuse_entry_out out = { 0 };
	struct stat found;
	const char *name = name_at(request, 0);
	if (!name) {
		answer(request, errno, NULL, 0);
		return;
	}
	struct node *node = node_meet(parent, name, &found);
	int error = node ? 0 : errno;
	if (node) {
		fill_entry(parent, node, &found, &out);
	} else if (error == ENOENT && name_lasts(parent) > 0) {
		/* No node: the guest may remember that there is nothing. */
		out.entry_valid = name_lasts(parent);
		error = 0;
	}
	answer(request, error, &out, sizeof out);
}

void do_readlink(const struct request *request, struct node *node)
{
	char target[PATH_MAX];
	ssize_t size = readlinkat(node->fd, "", target, sizeof target);
	answer(request, size < 0 ? errno : 0, target, size < 0 ? 0 : (size_t)size);
}

/* What was made under a name is told as a lookup of it is. */
static void tell_made(const struct request *request, struct node *parent, const char *name, int error)
{
	struct fuse_entry_out out;
	struct stat found;
	struct node *node = error ? NULL : node_meet(parent, name, &found);
	if (!error && !node)
		error = errno;
	if (node) {
		fill_entry(parent, node, &found, &out);
		tell_parent(parent);
	}
	answer(request, error, &out, sizeof out);
}

void do_mknod(const struct request *request, struct node *parent)
{
	struct fuse_mknod_in in;
	memcpy(&in, request->body, sizeof in);
	const char *name = name_at(request, sizeof in);
	int error = refusal(parent);
	if (!error && !name)
		error = errno;
	/* Fifos and sockets work within the machine; devices of the host's are not for it to name. */
	if (!error && (in.mode & refused_modes || !(S_ISREG(in.mode) || S_ISFIFO(in.mode) || S_ISSOCK(in.mode))))
		error = EPERM;
	if (!error && mknodat(parent->fd, name, in.mode, 0) < 0)
		error = errno;
	tell_made(request, parent, name, error);
}

void do_mkdir(const struct request *request, struct node *parent)
{
	struct fuse_mkdir_in in;
	memcpy(&in, request->body, sizeof in);
	const char *name = name_at(request, sizeof in);
	int error = refusal(parent);
	if (!error && !name)
		error = errno;
	if (!error && in.mode & refused_modes)
		error = EPERM;
	if (!error && mkdirat(parent->fd, name, in.mode & 07777) < 0)
		error = errno;
	tell_made(request, parent, name, error);
}

void do_symlink(const struct request *request, struct node *parent)
{
	const char *name = name_at(request, 0);
	const char *target = name ? text_at(request, strlen(name) + 1) : NULL;
	int error = refusal(parent);
	if (!error && !target)
		error = EINVAL;
	if (!error && symlinkat(target, parent->fd, name) < 0)
		error = errno;
	tell_made(request, parent, name, error);
}

void do_link(const struct request *request, struct node *parent)
{
	struct fuse_link_in in;
	memcpy(&in, request->body, sizeof in);
	const char *name = name_at(request, sizeof in);
	struct node *node = node_find(in.oldnodeid);
	int error = refusal(parent);
	if (!error && (!name || !node))
		error = node ? errno : ESTALE;
	if (!error)
		error = refusal(node);
	if (!error && linkat(AT_FDCWD, node_path(node), parent->fd, name, AT_SYMLINK_FOLLOW) < 0)
		error = errno;
	tell_made(request, parent, name, error);
}

static void removed(const struct request *request, struct node *parent, int flags)
{
	const char *name = name_at(request, 0);
	int error = refusal(parent);
	if (!error && !name)
		error = errno;
	if (!error && unlinkat(parent->fd, name, flags) < 0)
		error = errno;
	if (!error) {
		struct node *node = node_named(parent, name);
		if (node)
			node_lose_name(node, false);
		tell_parent(parent);
	}
	answer(request, error, NULL, 0);
}

void do_unlink(const struct request *request, struct node *parent)
{
	removed(request, parent, 0);
}

void do_rmdir(const struct request *request, struct node *parent)
{
	removed(request, parent, AT_REMOVEDIR);
}

static void rename_it(const struct request *request, struct node *parent, uint64_t into, size_t names,
                      unsigned flags)
{
	const char *name = name_at(request, names);
	const char *other = name ? name_at(request, names + strlen(name) + 1) : NULL;
	struct node *target = node_find(into);
	int error = refusal(parent);
	/* RENAME_WHITEOUT would make a device. */
	if (!error && flags & ~(unsigned)(RENAME_NOREPLACE | RENAME_EXCHANGE))
		error = EINVAL;
	if (!error && (!other || !target))
		error = target ? errno : ESTALE;
	if (!error)
		error = refusal(target);
	if (!error && syscall(SYS_renameat2, parent->fd, name, target->fd, other, flags) < 0)
		error = errno;
	if (!error) {
		struct node *moved = node_named(parent, name), *met = node_named(target, other);
		if (met)
			node_lose_name(met, false);
		if (moved)
			node_rename(moved, target, other);
		if (met && flags & RENAME_EXCHANGE)
			node_rename(met, parent, name);
		tell_parent(target);
	}
	answer(request, error, NULL, 0);
}

void do_rename(const struct request *request, struct node *parent)
{
	struct fuse_rename_in in;
	memcpy(&in, request->body, sizeof in);
	rename_it(request, parent, in.newdir, sizeof in, 0);
}

void do_rename2(const struct request *request, struct node *parent)
{
	struct fuse_rename2_in in;
	memcpy(&in, request->body, sizeof in);
	rename_it(request, parent, in.newdir, sizeof in, in.flags);
}
