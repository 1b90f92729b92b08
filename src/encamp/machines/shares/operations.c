/* Which message asks for what: FUSE's operations, from a guest that may be anybody. */
#define _GNU_SOURCE
#include "server.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
	operation *run;
	size_t needs;          /* bytes of the body that are always there */
} operations[] = {
	[FUSE_LOOKUP] = { do_lookup, 0 },
	[FUSE_GETATTR] = { do_getattr, 0 },
	[FUSE_SETATTR] = { do_setattr, sizeof(struct fuse_setattr_in) },
	[FUSE_READLINK] = { do_readlink, 0 },
	[FUSE_SYMLINK] = { do_symlink, 0 },
	[FUSE_MKNOD] = { do_mknod, sizeof(struct fuse_mknod_in) },
	[FUSE_MKDIR] = { do_mkdir, sizeof(struct fuse_mkdir_in) },
	[FUSE_UNLINK] = { do_unlink, 0 },
	[FUSE_RMDIR] = { do_rmdir, 0 },
	[FUSE_RENAME] = { do_rename, sizeof(struct fuse_rename_in) },
	[FUSE_LINK] = { do_link, sizeof(struct fuse_link_in) },
	[FUSE_OPEN] = { do_open, sizeof(struct fuse_open_in) },
	[FUSE_READ] = { do_read, sizeof(struct fuse_read_in) },
	[FUSE_WRITE] = { do_write, sizeof(struct fuse_write_in) },
	[FUSE_STATFS] = { do_statfs, 0 },
	[FUSE_RELEASE] = { do_release, sizeof(struct fuse_release_in) },
	[FUSE_FSYNC] = { do_fsync, sizeof(struct fuse_fsync_in) },
	[FUSE_SETXATTR] = { do_setxattr, FUSE_COMPAT_SETXATTR_IN_SIZE },
	[FUSE_GETXATTR] = { do_getxattr, sizeof(struct fuse_getxattr_in) },
	[FUSE_LISTXATTR] = { do_listxattr, sizeof(struct fuse_getxattr_in) },
	[FUSE_REMOVEXATTR] = { do_removexattr, 0 },
	[FUSE_FLUSH] = { do_flush, sizeof(struct fuse_flush_in) },
	[FUSE_OPENDIR] = { do_opendir, 0 },
	[FUSE_READDIR] = { do_readdir, sizeof(struct fuse_read_in) },
	[FUSE_READDIRPLUS] = { do_readdirplus, sizeof(struct fuse_read_in) },
	[FUSE_RELEASEDIR] = { do_releasedir, sizeof(struct fuse_release_in) },
	[FUSE_FSYNCDIR] = { do_fsync, sizeof(struct fuse_fsync_in) },
	[FUSE_GETLK] = { do_getlk, sizeof(struct fuse_lk_in) },
	[FUSE_SETLK] = { do_setlk, sizeof(struct fuse_lk_in) },
	[FUSE_SETLKW] = { do_setlkw, sizeof(struct fuse_lk_in) },
	[FUSE_CREATE] = { do_create, sizeof(struct fuse_create_in) },
	[FUSE_FALLOCATE] = { do_fallocate, sizeof(struct fuse_fallocate_in) },
	[FUSE_RENAME2] = { do_rename2, sizeof(struct fuse_rename2_in) },
	[FUSE_LSEEK] = { do_lseek, sizeof(struct fuse_lseek_in) },
	[FUSE_COPY_FILE_RANGE] = { do_copy_file_range, sizeof(struct fuse_copy_file_range_in) },
};

static const uint32_t wanted =
	FUSE_ASYNC_READ | FUSE_POSIX_LOCKS | FUSE_FLOCK_LOCKS | FUSE_ATOMIC_O_TRUNC | FUSE_BIG_WRITES |
	FUSE_AUTO_INVAL_DATA | FUSE_DO_READDIRPLUS | FUSE_READDIRPLUS_AUTO | FUSE_PARALLEL_DIROPS |
	FUSE_MAX_PAGES | FUSE_CACHE_SYMLINKS | FUSE_HANDLE_KILLPRIV_V2;

const char *text_at(const struct request *request, size_t offset)
{
	/* Behind the body there is a zero; a text has to end before. */
	if (offset >= request->size || !memchr(request->body + offset, 0, request->size - offset))
		return NULL;
	return (const char *)request->body + offset;
}

const char *name_at(const struct request *request, size_t offset)
{
	const char *name = text_at(request, offset);
	bool fits = name && strlen(name) <= NAME_MAX;
	errno = name && !fits ? ENAMETOOLONG : EINVAL;
	return fits && *name && !strchr(name, '/') && strcmp(name, ".") && strcmp(name, "..") ? name : NULL;
}

int refusal(const struct node *node)
{
	return node->share->readonly ? EROFS : 0;
}

static void begin(const struct request *request)
{
	struct fuse_init_in in = { 0 };
	memcpy(&in, request->body, request->size < sizeof in ? request->size : sizeof in);
	struct fuse_init_out out = {
		.major = FUSE_KERNEL_VERSION,
		.minor = in.minor < FUSE_KERNEL_MINOR_VERSION ? in.minor : FUSE_KERNEL_MINOR_VERSION,
		.max_readahead = WIRE_MOST,
		.flags = wanted & in.flags,
		.max_background = 64,
		.congestion_threshold = 48,
		.max_write = WIRE_MOST,
		.time_gran = 1,
		.max_pages = WIRE_MOST / 4096,
	};
	answer(request, 0, &out, sizeof out);
	for (unsigned i = 0; i < share_count; i++)
		if (!shares[i].local) {
			tell(WIRE_CLOSES);
			break;
		}
}

/* A mount of the guest's is gone, or a new one begins: nothing is left of the one before. */
static void clear(void)
{
	locks_clear();
	handles_clear();
	nodes_clear();
}

/* The root shows nothing but the shares, and these only to whoever knows their numbers. */
static void at_root(const struct request *request)
{
	uint32_t opcode = request->head->opcode;
	struct fuse_entry_out entry;
	struct fuse_attr_out root = {
		.attr_valid = 3600,
		.attr = { .ino = FUSE_ROOT_ID, .mode = S_IFDIR | 0700, .nlink = 2, .blksize = 4096 },
	};
	struct fuse_statfs_out statfs = { .st = { .bsize = 4096, .frsize = 4096, .namelen = 255 } };
	struct fuse_open_out open = { 0 };
	struct stat found;

	if (opcode == FUSE_LOOKUP) {
		const char *name = name_at(request, 0);
		char *rest = NULL;
		unsigned long number = name && *name >= '0' && *name <= '9' ? strtoul(name, &rest, 10) : share_count;
		struct node *node = number < share_count && !*rest ? shares[number].node : NULL;
		if (node && fstat(node->fd, &found) == 0) {
			node->lookups++;
			fill_entry(node, node, &found, &entry);
		}
		answer(request, node ? 0 : ENOENT, &entry, sizeof entry);
	} else if (opcode == FUSE_GETATTR) {
		answer(request, 0, &root, sizeof root);
	} else if (opcode == FUSE_STATFS) {
		answer(request, 0, &statfs, sizeof statfs);
	} else if (opcode == FUSE_OPENDIR) {
		answer(request, 0, &open, sizeof open);
	} else if (opcode == FUSE_READDIR || opcode == FUSE_READDIRPLUS || opcode == FUSE_RELEASEDIR) {
		answer(request, 0, NULL, 0);
	} else {
		answer(request, EACCES, NULL, 0);
	}
}

static void forget(uint64_t id, uint64_t times)
{
	struct node *node = node_find(id);
	if (node)
		node_forget(node, times);
}

static void forget_many(const struct request *request)
{
	struct fuse_batch_forget_in in;
	struct fuse_forget_one one;
	memcpy(&in, request->body, sizeof in);
	for (size_t at = sizeof in; in.count-- > 0 && at + sizeof one <= request->size; at += sizeof one) {
		memcpy(&one, request->body + at, sizeof one);
		forget(one.nodeid, one.nlookup);
	}
}

/* What has no node, or no answer. */
static bool operate_without_node(const struct request *request)
{
	const struct fuse_in_header *head = request->head;
	uint64_t times;

	switch (head->opcode) {
	case FUSE_INIT:
		clear();
		begin(request);
		return true;
	case FUSE_DESTROY:
		clear();
		tell(WIRE_END);
		return true;
	case FUSE_FORGET:
		if (request->size >= sizeof times) {
			memcpy(&times, request->body, sizeof times);
			forget(head->nodeid, times);
		}
		return true;
	case FUSE_BATCH_FORGET:
		if (request->size >= sizeof(struct fuse_batch_forget_in))
			forget_many(request);
		return true;
	case FUSE_INTERRUPT:
		if (request->size >= sizeof(struct fuse_interrupt_in))
			do_interrupt(request);
		return true;
	default:
		return false;
	}
}

void operate(const struct request *request)
{
	const struct fuse_in_header *head = request->head;

	if (operate_without_node(request))
		return;
	if (head->opcode >= sizeof operations / sizeof *operations || !operations[head->opcode].run) {
		answer_never(request);
		return;
	}
	if (request->size < operations[head->opcode].needs) {
		answer(request, EINVAL, NULL, 0);
		return;
	}
	if (head->nodeid == FUSE_ROOT_ID) {
		at_root(request);
		return;
	}
	struct node *node = node_find(head->nodeid);
	if (!node)
		answer(request, ESTALE, NULL, 0);
	else
		operations[head->opcode].run(request, node);
}
