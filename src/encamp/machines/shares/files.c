/* Open files and directories. */
#define _GNU_SOURCE
#include "server.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HANDLES_MOST 100000
/* By such files programs share memory: those of SQLite, with a write-ahead log, and of LMDB. Those of
 * two machines would each see pages of their own, and lose what they have said is safe. */
static const char *const shared_memory[] = { "-shm", "lock.mdb" };

static struct handle *handles;
static uint32_t handle_count, serials;

struct handle *handle_find(const struct node *node, uint64_t number)
{
	uint32_t index = (uint32_t)number;
	if (index >= handle_count || handles[index].serial != number >> 32 || handles[index].node != node)
		return NULL;
	return &handles[index];
}

int handle_open(struct node *node, int fd, int flags, uint64_t *number)
{
	uint32_t index = 0;
	while (index < handle_count && handles[index].node)
		index++;
	if (index == handle_count) {
		uint32_t larger = handle_count ? handle_count * 2 : 64;
		struct handle *moved = larger > HANDLES_MOST ? NULL : realloc(handles, larger * sizeof *handles);
		if (!moved) {
			close(fd);
			errno = ENFILE;
			return -1;
		}
		memset(moved + handle_count, 0, (larger - handle_count) * sizeof *handles);
		handles = moved;
		handle_count = larger;
	}
	handles[index] = (struct handle){
		.fd = fd,
		.node = node,
		.serial = ++serials,
		.appends = flags & O_APPEND,
		.writes = (flags & O_ACCMODE) != O_RDONLY,
	};
	node_use(node);
	*number = (uint64_t)serials << 32 | index;
	return 0;
}

static void close_handle(struct handle *handle)
{
	struct node *node = handle->node;
	locks_drop_handle(handle);
	close(handle->fd);
	handle->node = NULL;
	node_leave(node);
}

void handles_clear(void)
{
	for (uint32_t i = 0; i < handle_count; i++)
		if (handles[i].node)
			close_handle(&handles[i]);
}

static bool is_shared_memory(const char *name)
{
	for (size_t i = 0; name && i < sizeof shared_memory / sizeof *shared_memory; i++) {
		size_t length = strlen(name), end = strlen(shared_memory[i]);
		if (length >= end && strcmp(name + length - end, shared_memory[i]) == 0)
			return true;
	}
	return false;
}

static bool same_time(struct timespec one, struct timespec other)
{
	return one.tv_sec == other.tv_sec && one.tv_nsec == other.tv_nsec;
}

/* Whoever opens a file sees what others had written to it when they closed it. Pages that the guest
 * still has are kept if nobody else has changed the file since it was opened last. */
static uint32_t how_to_cache(struct node *node, const struct stat *found)
{
	bool same = !node->stale && node->size == found->st_size &&
	            same_time(node->modified, found->st_mtim) && same_time(node->changed, found->st_ctim);
	/* Where changes are told, those that are not the guest's own have been. */
	bool own = !node->stale && node->changed_here && found->st_nlink == 1 && is_watched(node->parent);
	/* What was taken back in order may not have reached the guest's kernel yet. */
	bool unknown = node->stale || (node->size >= 0 && !same && !own);
	node->size = found->st_size;
	node->modified = found->st_mtim;
	node->changed = found->st_ctim;
	node->changed_here = node->stale = false;
	if (unknown)
		take_back_attributes(node->id);
	/* The kernel maps no file for sharing that is open in this way. */
	if (is_shared_memory(node->name) && !lock_claim(node))
		return FOPEN_DIRECT_IO;
	return same || own ? FOPEN_KEEP_CACHE : 0;
}

/* What of the guest's flags is the host's business. */
static int flags_of(uint32_t given)
{
	return (int)given & (O_ACCMODE | O_TRUNC | O_APPEND | O_SYNC | O_DSYNC);
}

/* A name that the guest had remembered may have become another file's meanwhile. Told that its own is
 * stale, it looks the name up again. */
static bool has_its_name(struct node *node)
{
	struct node *parent = node->name ? node_find(node->parent) : NULL;
	struct stat found;
	if (node->lost)
		return false;
	if (!parent || (fstatat(parent->fd, node->name, &found, AT_SYMLINK_NOFOLLOW) == 0 &&
	                found.st_dev == node->device && found.st_ino == node->number))
		return true;
	node_lose_name(node, true);
	return false;
}

void do_open(const struct request *request, struct node *node)
{
	struct fuse_open_in in;
	struct fuse_open_out out = { 0 };
	struct stat found;
	memcpy(&in, request->body, sizeof in);
	int flags = flags_of(in.flags), error = 0;
	if ((flags & O_ACCMODE) != O_RDONLY || flags & O_TRUNC)
		error = refusal(node);
	if (!error && !S_ISREG(node->type))
		error = ENXIO;
	watch_drain();
	if (!error && !has_its_name(node))
		error = ESTALE;
	int fd = error ? -1 : node_open(node, flags);
	if (!error && (fd < 0 || fstat(fd, &found) < 0 || handle_open(node, fd, flags, &out.fh) < 0))
		error = errno;
	if (error) {
		answer(request, error, NULL, 0);
		return;
	}
	out.open_flags = how_to_cache(node, &found);
	answer(request, 0, &out, sizeof out);
}

/* Made, or opened if it is there. Fifos and devices are not opened, nor links followed. */
static struct node *create(struct node *parent, const char *name, int flags, bool exclusive, mode_t mode,
                           int *opened, struct stat *found)
{
	for (int tries = 0; tries < 10; tries++) {
		int made = O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
		*opened = openat(parent->fd, name, flags | made, mode);
		if (*opened >= 0) {
			struct node *node = node_meet_open(parent, name, *opened, found);
			if (!node) {
				int error = errno;
				close(*opened);
				errno = error;
			}
			return node;
		}
		if (errno != EEXIST || exclusive)
			return NULL;
		struct node *node = node_meet(parent, name, found);
		if (node && (*opened = node_open(node, flags)) >= 0)
			return fstat(*opened, found), node;
		int error = errno;
		if (node)
			node_forget(node, 1);
		errno = error;
		if (error != ENOENT)
			return NULL;
	}
	return NULL;
}

void do_create(const struct request *request, struct node *parent)
{
	struct fuse_create_in in;
	struct {
		struct fuse_entry_out entry;
		struct fuse_open_out open;
	} out = { 0 };
	struct stat found;
	int fd = -1;
	memcpy(&in, request->body, sizeof in);
	const char *name = name_at(request, sizeof in);
	int flags = flags_of(in.flags), error = refusal(parent);
	if (!error && !name)
		error = errno;
	if (!error && in.mode & refused_modes)
		error = EPERM;
	struct node *node = error ? NULL : create(parent, name, flags, in.flags & O_EXCL, in.mode & 07777, &fd, &found);
	if (!error && !node)
		error = errno;
	if (!error && handle_open(node, fd, flags, &out.open.fh) < 0) {
		error = errno;
		node_forget(node, 1);
	}
	if (error) {
		answer(request, error, NULL, 0);
		return;
	}
	out.open.open_flags = how_to_cache(node, &found);
	fill_entry(parent, node, &found, &out.entry);
	tell_parent(parent);
	answer(request, 0, &out, sizeof out);
}

void do_read(const struct request *request, struct node *node)
{
	static uint8_t buffer[WIRE_MOST];
	struct fuse_read_in in;
	memcpy(&in, request->body, sizeof in);
	const struct handle *handle = handle_find(node, in.fh);
	if (!handle || in.size > WIRE_MOST || in.offset > INT64_MAX) {
		answer(request, handle ? EINVAL : EBADF, NULL, 0);
		return;
	}
	bool beside = request->slot && in.size > WIRE_INLINE;
	ssize_t got = pread(handle->fd, beside ? request->slot : buffer, in.size, (off_t)in.offset);
	if (got < 0)
		answer(request, errno, NULL, 0);
	else if (beside && got > 0)
		answer_in_slot(request, (uint32_t)got);
	else
		answer(request, 0, buffer, (size_t)got);
}

static bool set_appending(int fd, bool appends)
{
	int flags = fcntl(fd, F_GETFL);
	return fcntl(fd, F_SETFL, appends ? flags | O_APPEND : flags & ~O_APPEND) == 0;
}

void do_write(const struct request *request, struct node *node)
{
	struct fuse_write_in in;
	struct stat found;
	memcpy(&in, request->body, sizeof in);
	struct handle *handle = handle_find(node, in.fh);
	const uint8_t *data = request->filled ? request->slot : request->body + sizeof in;
	size_t here = request->filled ? request->filled : request->size - sizeof in;
	int error = handle ? refusal(node) : EBADF;
	if (!error && (in.size > here || in.offset > INT64_MAX))
		error = EINVAL;
	/* The host writes at what is the end there. If the guest took another place for it, what it
	 * keeps of the file is wrong. */
	bool mapped = in.write_flags & FUSE_WRITE_CACHE;
	/* Programs may change their mind about that while the file is open: each write says it anew. */
	bool appends = !error && in.flags & O_APPEND && !mapped;
	bool elsewhere = appends && fstat(handle->fd, &found) == 0 && (uint64_t)found.st_size != in.offset;
	/* What was stored through a map comes by any handle of the file, and belongs where it was. */
	if (!error && appends != handle->appends && set_appending(handle->fd, appends))
		handle->appends = appends;
	ssize_t done = error ? -1 : pwrite(handle->fd, data, in.size, (off_t)in.offset);
	if (!error && done < 0)
		error = errno;
	if (elsewhere)
		take_back(node->id, CONTENT);
	else
		node->changed_here = true;
	struct fuse_write_out out = { .size = error ? 0 : (uint32_t)done };
	answer(request, error, &out, sizeof out);
}

void do_flush(const struct request *request, struct node *node)
{
	struct fuse_flush_in in;
	memcpy(&in, request->body, sizeof in);
	const struct handle *handle = handle_find(node, in.fh);
	locks_drop_owner(node, in.lock_owner);
	/* A file system on another host writes when a descriptor is closed, and tells what went wrong. */
	int copy = handle ? fcntl(handle->fd, F_DUPFD_CLOEXEC, 0) : -1;
	answer(request, copy >= 0 && close(copy) < 0 ? errno : 0, NULL, 0);
}

void do_release(const struct request *request, struct node *node)
{
	struct fuse_release_in in;
	memcpy(&in, request->body, sizeof in);
	struct handle *handle = handle_find(node, in.fh);
	if (handle)
		close_handle(handle);
	answer(request, handle ? 0 : EBADF, NULL, 0);
}

void do_releasedir(const struct request *request, struct node *node)
{
	do_release(request, node);
}

void do_fsync(const struct request *request, struct node *node)
{
	struct fuse_fsync_in in;
	memcpy(&in, request->body, sizeof in);
	const struct handle *handle = handle_find(node, in.fh);
	int error = handle ? 0 : EBADF;
	if (handle && (in.fsync_flags & FUSE_FSYNC_FDATASYNC ? fdatasync(handle->fd) : fsync(handle->fd)) < 0)
		error = errno;
	answer(request, error, NULL, 0);
}

void do_fallocate(const struct request *request, struct node *node)
{
	struct fuse_fallocate_in in;
	memcpy(&in, request->body, sizeof in);
	const struct handle *handle = handle_find(node, in.fh);
	int error = handle ? refusal(node) : EBADF;
	if (!error && fallocate(handle->fd, (int)in.mode, (off_t)in.offset, (off_t)in.length) < 0)
		error = errno;
	node->changed_here = true;
	answer(request, error, NULL, 0);
}

void do_lseek(const struct request *request, struct node *node)
{
	struct fuse_lseek_in in;
	memcpy(&in, request->body, sizeof in);
	const struct handle *handle = handle_find(node, in.fh);
	int error = !handle ? EBADF : in.whence != SEEK_DATA && in.whence != SEEK_HOLE ? EINVAL : 0;
	off_t at = error ? -1 : lseek(handle->fd, (off_t)in.offset, (int)in.whence);
	if (!error && at < 0)
		error = errno;
	struct fuse_lseek_out out = { .offset = (uint64_t)at };
	answer(request, error, &out, sizeof out);
}

void do_copy_file_range(const struct request *request, struct node *node)
{
	struct fuse_copy_file_range_in in;
	memcpy(&in, request->body, sizeof in);
	struct node *to = node_find(in.nodeid_out);
	const struct handle *source = handle_find(node, in.fh_in);
	const struct handle *target = to ? handle_find(to, in.fh_out) : NULL;
	off_t from = (off_t)in.off_in, into = (off_t)in.off_out;
	int error = source && target ? refusal(to) : EBADF;
	/* In parts: others wait meanwhile. */
	size_t length = in.len < 64 * WIRE_MOST ? in.len : 64 * WIRE_MOST;
	ssize_t done = error ? -1 : copy_file_range(source->fd, &from, target->fd, &into, length, 0);
	if (!error && done < 0)
		error = errno;
	if (to)
		to->changed_here = true;
	struct fuse_write_out out = { .size = error ? 0 : (uint32_t)done };
	answer(request, error, &out, sizeof out);
}

/* ── directories ─────────────────────────────────────────────────────────────────────────────── */

void do_opendir(const struct request *request, struct node *node)
{
	struct fuse_open_out out = { 0 };
	int error = S_ISDIR(node->type) ? 0 : ENOTDIR;
	int fd = error ? -1 : node_open(node, O_RDONLY | O_DIRECTORY);
	if (!error && (fd < 0 || handle_open(node, fd, O_RDONLY, &out.fh) < 0))
		error = errno;
	answer(request, error, &out, sizeof out);
}

struct host_entry {
	uint64_t number;
	int64_t next;
	uint16_t length;
	uint8_t type;
	char name[];
};

static bool is_dots(const char *name)
{
	return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

static size_t put_entry(struct node *node, const struct host_entry *each, bool plus, uint8_t *to, size_t room)
{
	struct fuse_direntplus entry = { 0 };
	size_t name = strlen(each->name);
	size_t before = plus ? offsetof(struct fuse_direntplus, dirent.name) : offsetof(struct fuse_dirent, name);
	size_t whole = FUSE_DIRENT_ALIGN(before + name);
	struct node *child = NULL;
	struct stat found;

	if (whole > room)
		return 0;
	entry.dirent = (struct fuse_dirent){
		.ino = number_told(node->device, each->number),
		.off = (uint64_t)each->next,
		.namelen = (uint32_t)name,
		.type = each->type,
	};
	/* Without a node, the kernel asks for what it needs of the file later. */
	if (plus && !is_dots(each->name) && !nodes_are_many())
		child = node_meet(node, each->name, &found);
	if (child) {
		fill_entry(node, child, &found, &entry.entry_out);
		entry.dirent.ino = entry.entry_out.attr.ino;
	}
	memset(to, 0, whole);
	memcpy(to, plus ? (void *)&entry : (void *)&entry.dirent, before);
	memcpy(to + before, each->name, name);
	return whole;
}

static void read_directory(const struct request *request, struct node *node, bool plus)
{
	static uint8_t listed[65536], told[65536];
	struct fuse_read_in in;
	size_t used = 0;
	memcpy(&in, request->body, sizeof in);
	struct handle *handle = handle_find(node, in.fh);
	size_t room = in.size < sizeof told ? in.size : sizeof told;
	int error = handle ? 0 : EBADF;
	if (!error && handle->position != (off_t)in.offset && lseek(handle->fd, (off_t)in.offset, SEEK_SET) < 0)
		error = errno;
	if (error) {
		answer(request, error, NULL, 0);
		return;
	}
	handle->position = (off_t)in.offset;
	watch_drain();
	bool full = false;
	while (!full) {
		/* Not much more than will fit: what does not is listed again. */
		size_t most = room - used < sizeof listed ? room - used : sizeof listed;
		ssize_t size = syscall(SYS_getdents64, handle->fd, listed, most < 512 ? 512 : most);
		if (size < 0 && used == 0)
			error = errno;
		if (size <= 0)
			break;
		for (ssize_t at = 0; at < size && !full;) {
			const struct host_entry *each = (const void *)(listed + at);
			size_t put = put_entry(node, each, plus, told + used, room - used);
			full = put == 0;
			used += put;
			at += each->length;
			if (!full)
				handle->position = each->next;
		}
	}
	if (full && lseek(handle->fd, handle->position, SEEK_SET) < 0)
		handle->position = -1;
	answer(request, error, told, used);
}

void do_readdir(const struct request *request, struct node *node)
{
	read_directory(request, node, false);
}

void do_readdirplus(const struct request *request, struct node *node)
{
	read_directory(request, node, true);
}
