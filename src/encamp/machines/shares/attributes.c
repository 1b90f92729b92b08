/* What a file system says of its files. */
#define _GNU_SOURCE
#include "server.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

/* Seconds. In a directory that is watched, changes by others are told at once; what fanotify does not
 * see (a store into a map of the host's) is seen after this time, or when the file is opened. */
#define WATCHED_LASTS 60
#define UNWATCHED_LASTS 1
#define DEVICES_MOST 255
#define XATTR_MOST 65536

mode_t refused_modes = S_ISUID;

/* All shares are one file system to the guest, so the numbers of files on different ones of the host's
 * are kept apart: programs take two files of one number for one file. */
uint64_t number_told(dev_t device, ino_t number)
{
	static dev_t devices[DEVICES_MOST];
	static unsigned known;
	unsigned i = 0;
	while (i < known && devices[i] != device)
		i++;
	if (i == known && known < DEVICES_MOST)
		devices[known++] = device;
	return number ^ (uint64_t)i << 56;
}

static uint64_t attributes_last(const struct node *node, const struct stat *found)
{
	if (S_ISDIR(found->st_mode))
		return shares_overlap ? 0 : node->place ? WATCHED_LASTS : UNWATCHED_LASTS;
	/* A change by another name of the file may be told to nobody. */
	return found->st_nlink == 1 && is_watched(node->parent) ? WATCHED_LASTS : UNWATCHED_LASTS;
}

uint64_t name_lasts(const struct node *parent)
{
	return parent->place && !shares_overlap ? WATCHED_LASTS : 0;
}

void fill_attributes(const struct node *node, const struct stat *found, struct fuse_attr_out *out)
{
	*out = (struct fuse_attr_out){
		.attr_valid = attributes_last(node, found),
		.attr = {
			.ino = number_told(found->st_dev, found->st_ino),
			.size = (uint64_t)found->st_size,
			.blocks = (uint64_t)found->st_blocks,
			.atime = (uint64_t)found->st_atim.tv_sec,
			.mtime = (uint64_t)found->st_mtim.tv_sec,
			.ctime = (uint64_t)found->st_ctim.tv_sec,
			.atimensec = (uint32_t)found->st_atim.tv_nsec,
			.mtimensec = (uint32_t)found->st_mtim.tv_nsec,
			.ctimensec = (uint32_t)found->st_ctim.tv_nsec,
			.mode = found->st_mode,
			.nlink = (uint32_t)found->st_nlink,
			.uid = found->st_uid,
			.gid = found->st_gid,
			.rdev = (uint32_t)found->st_rdev,
			.blksize = (uint32_t)found->st_blksize,
		},
	};
}

void fill_entry(const struct node *parent, const struct node *node, const struct stat *found,
                struct fuse_entry_out *out)
{
	struct fuse_attr_out attributes;
	fill_attributes(node, found, &attributes);
	*out = (struct fuse_entry_out){
		.nodeid = node->id,
		.entry_valid = name_lasts(parent),
		.attr_valid = attributes.attr_valid,
		.attr = attributes.attr,
	};
}

static void tell_attributes(const struct request *request, struct node *node)
{
	struct fuse_attr_out out;
	struct stat found;
	if (fstat(node->fd, &found) < 0) {
		answer(request, errno, NULL, 0);
		return;
	}
	fill_attributes(node, &found, &out);
	answer(request, 0, &out, sizeof out);
}

void tell_parent(const struct node *parent)
{
	struct fuse_attr_out out;
	struct stat found;
	if (fstat(parent->fd, &found) == 0) {
		fill_attributes(parent, &found, &out);
		tell_hint(parent->id, &out);
	}
}

void do_getattr(const struct request *request, struct node *node)
{
	tell_attributes(request, node);
}

static int set_size(struct node *node, const struct fuse_setattr_in *in)
{
	const struct handle *handle = in->valid & FATTR_FH ? handle_find(node, in->fh) : NULL;
	if (in->size > INT64_MAX)
		return EINVAL;
	int fd = handle && handle->writes ? handle->fd : node_open(node, O_WRONLY);
	if (fd < 0)
		return errno;
	int error = ftruncate(fd, (off_t)in->size) < 0 ? errno : 0;
	if (!handle || fd != handle->fd)
		close(fd);
	node->changed_here = true;
	return error;
}

static struct timespec time_to_set(uint32_t valid, uint32_t given, uint32_t now, uint64_t seconds,
                                   uint32_t nanoseconds)
{
	if (valid & now)
		return (struct timespec){ .tv_nsec = UTIME_NOW };
	if (!(valid & given))
		return (struct timespec){ .tv_nsec = UTIME_OMIT };
	return (struct timespec){ (time_t)seconds, nanoseconds < 1000000000 ? nanoseconds : 999999999 };
}

static int set(struct node *node, const struct fuse_setattr_in *in)
{
	int error = 0;
	if (in->valid & FATTR_MODE && in->mode & refused_modes)
		return EPERM;
	if (in->valid & FATTR_SIZE)
		error = set_size(node, in);
	if (!error && in->valid & (FATTR_UID | FATTR_GID) &&
	    fchownat(node->fd, "", in->valid & FATTR_UID ? in->uid : (uid_t)-1,
	             in->valid & FATTR_GID ? in->gid : (gid_t)-1, AT_EMPTY_PATH) < 0)
		error = errno;
	if (!error && in->valid & FATTR_MODE &&
	    fchmodat(AT_FDCWD, node_path(node), in->mode & 07777, 0) < 0)
		error = errno;
	if (!error && in->valid & (FATTR_ATIME | FATTR_MTIME | FATTR_ATIME_NOW | FATTR_MTIME_NOW)) {
		struct timespec times[] = {
			time_to_set(in->valid, FATTR_ATIME, FATTR_ATIME_NOW, in->atime, in->atimensec),
			time_to_set(in->valid, FATTR_MTIME, FATTR_MTIME_NOW, in->mtime, in->mtimensec),
		};
		if (utimensat(AT_FDCWD, node_path(node), times, 0) < 0)
			error = errno;
		node->changed_here = true;
	}
	return error;
}

void do_setattr(const struct request *request, struct node *node)
{
	struct fuse_setattr_in in;
	memcpy(&in, request->body, sizeof in);
	int error = refusal(node);
	if (!error)
		error = set(node, &in);
	if (error)
		answer(request, error, NULL, 0);
	else
		tell_attributes(request, node);
}

void do_statfs(const struct request *request, struct node *node)
{
	struct statvfs found;
	if (fstatvfs(node->fd, &found) < 0) {
		answer(request, errno, NULL, 0);
		return;
	}
	struct fuse_statfs_out out = { .st = {
		.blocks = found.f_blocks,
		.bfree = found.f_bfree,
		.bavail = found.f_bavail,
		.files = found.f_files,
		.ffree = found.f_ffree,
		.bsize = (uint32_t)found.f_bsize,
		.namelen = (uint32_t)found.f_namemax,
		.frsize = (uint32_t)found.f_frsize,
	} };
	answer(request, 0, &out, sizeof out);
}

/* Attributes of the kinds `security` and `trusted` mean something to the host, and an access list
 * (`system`) would be shown and not obeyed. */
static const char *attribute_at(const struct request *request, size_t offset)
{
	const char *name = text_at(request, offset);
	return name && strncmp(name, "user.", 5) == 0 && strlen(name) <= 255 ? name : NULL;
}

void do_setxattr(const struct request *request, struct node *node)
{
	struct fuse_setxattr_in in;
	memcpy(&in, request->body, FUSE_COMPAT_SETXATTR_IN_SIZE);
	const char *name = attribute_at(request, FUSE_COMPAT_SETXATTR_IN_SIZE);
	size_t before = FUSE_COMPAT_SETXATTR_IN_SIZE + (name ? strlen(name) + 1 : 0);
	int error = refusal(node);
	if (!error && !name)
		error = EOPNOTSUPP;
	if (!error && in.size > request->size - before)
		error = EINVAL;
	if (!error && setxattr(node_path(node), name, request->body + before, in.size, (int)in.flags) < 0)
		error = errno;
	answer(request, error, NULL, 0);
}

static void tell_some(const struct request *request, uint32_t wanted, const void *data, ssize_t size)
{
	if (size < 0) {
		answer(request, errno, NULL, 0);
	} else if (wanted == 0) {
		struct fuse_getxattr_out out = { .size = (uint32_t)size };
		answer(request, 0, &out, sizeof out);
	} else {
		answer(request, (size_t)size > wanted ? ERANGE : 0, data, (size_t)size);
	}
}

static char attribute[XATTR_MOST];

void do_getxattr(const struct request *request, struct node *node)
{
	struct fuse_getxattr_in in;
	memcpy(&in, request->body, sizeof in);
	const char *name = attribute_at(request, sizeof in);
	if (!name)
		answer(request, EOPNOTSUPP, NULL, 0);
	else
		tell_some(request, in.size, attribute,
		          getxattr(node_path(node), name, attribute, sizeof attribute));
}

void do_listxattr(const struct request *request, struct node *node)
{
	struct fuse_getxattr_in in;
	memcpy(&in, request->body, sizeof in);
	ssize_t size = listxattr(node_path(node), attribute, sizeof attribute), kept = 0;
	for (ssize_t at = 0, length; at < size; at += length) {
		length = (ssize_t)strlen(attribute + at) + 1;
		if (strncmp(attribute + at, "user.", 5) == 0) {
			memmove(attribute + kept, attribute + at, (size_t)length);
			kept += length;
		}
	}
	tell_some(request, in.size, attribute, size < 0 ? size : kept);
}

void do_removexattr(const struct request *request, struct node *node)
{
	const char *name = attribute_at(request, 0);
	int error = refusal(node);
	if (!error && !name)
		error = EOPNOTSUPP;
	if (!error && removexattr(node_path(node), name) < 0)
		error = errno;
	answer(request, error, NULL, 0);
}
