/* encamp-shares-fuzz SEED COUNT DIR: a guest that means harm, and no channel in between.
 *
 * Gives the operations COUNT messages about the share DIR: every operation, sound ones and damaged
 * ones, nodes and handles that there are, were, or never have been. Each message is in memory of its
 * own size, so the sanitizers, with which `make fuzz` builds this, notice whoever reads past its end.
 * DIR should be on a small file system: some messages ask for all the room there is.
 */
#define _GNU_SOURCE
#include "server.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static uint64_t chance;
/* Of late the server has told of these: written by the thread that reads its answers. */
#define LATE 32
static _Atomic uint64_t told_nodes[LATE], told_handles[LATE], told_owners[LATE];
static uint64_t owner; /* of the handle that was drawn last, if that is known */

void fail(const char *what, const char *about)
{
	fprintf(stderr, "%s %s: %s\n", what, about, strerror(errno));
	exit(1);
}

static uint64_t draw(uint64_t below)
{
	chance ^= chance << 13;
	chance ^= chance >> 7;
	chance ^= chance << 17;
	return below ? (chance >> 11) % below : 0;
}

static uint64_t number(void)
{
	static const uint64_t edges[] = { 0, 1, 4095, 4096, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX };
	return draw(3) ? draw(5000) : edges[draw(sizeof edges / sizeof *edges)];
}

static uint64_t node(void)
{
	uint64_t late = told_nodes[draw(LATE)];
	switch (draw(8)) {
	case 0:
		return number();
	case 1:
		return FUSE_ROOT_ID + draw(3);
	case 2:
		return FUSE_ROOT_ID + 1;
	default:
		return late ? late : FUSE_ROOT_ID + 1;
	}
}

static uint64_t handle(void)
{
	uint64_t which = draw(LATE);
	owner = told_owners[which];
	return draw(20) ? told_handles[which] : number();
}

static size_t name(uint8_t *to)
{
	static const char *const names[] = {
		"a", "b", "c", "d", "below", "fifo", "out", "outside", "x-shm", "0", "", ".", "..", "../outside",
		"a/b", "/etc/passwd", "\xff\xfe", "user.a", "security.capability", "system.posix_acl_access",
	};
	size_t which = draw(sizeof names / sizeof *names + 2);
	if (which < sizeof names / sizeof *names) {
		strcpy((char *)to, names[which]);
		return strlen(names[which]) + 1;
	}
	size_t length = draw(2) ? 300 : draw(260);
	memset(to, 'n', length);
	to[length] = 0;
	return length + draw(4) / 3 + 1;
}

/* The body as the kernel would lay it out, with fields that are drawn. */
static size_t body(uint32_t opcode, uint8_t *to)
{
	size_t size = 0;
#define FIELDS(type, ...) do { type in = { __VA_ARGS__ }; memcpy(to, &in, size = sizeof in); } while (0)
	uint32_t flags = draw(2) ? O_RDWR : (uint32_t)number();
	uint32_t mode = draw(2) ? 0644 | (draw(3) ? S_IFREG : S_IFCHR) : (uint32_t)number();

	switch (opcode) {
	case FUSE_SETATTR:
		FIELDS(struct fuse_setattr_in, .valid = (uint32_t)draw(4096), .fh = handle(), .size = draw(100000),
		       .mode = (uint32_t)number(), .uid = (uint32_t)draw(3), .gid = (uint32_t)draw(3), .mtime = number());
		break;
	case FUSE_MKNOD:
		FIELDS(struct fuse_mknod_in, .mode = mode, .rdev = (uint32_t)number());
		break;
	case FUSE_MKDIR:
		FIELDS(struct fuse_mkdir_in, .mode = draw(3) ? 0755 : (uint32_t)number());
		break;
	case FUSE_RENAME:
		FIELDS(struct fuse_rename_in, .newdir = node());
		break;
	case FUSE_RENAME2:
		FIELDS(struct fuse_rename2_in, .newdir = node(), .flags = (uint32_t)draw(5));
		break;
	case FUSE_LINK:
		FIELDS(struct fuse_link_in, .oldnodeid = node());
		break;
	case FUSE_OPEN:
	case FUSE_OPENDIR:
		FIELDS(struct fuse_open_in, .flags = flags);
		break;
	case FUSE_CREATE:
		FIELDS(struct fuse_create_in, .flags = flags, .mode = mode);
		break;
	case FUSE_READ:
	case FUSE_READDIR:
	case FUSE_READDIRPLUS:
		FIELDS(struct fuse_read_in, .fh = handle(), .offset = number(), .size = (uint32_t)number());
		break;
	case FUSE_WRITE:
		FIELDS(struct fuse_write_in, .fh = handle(), .offset = draw(100000), .size = (uint32_t)number());
		return size + draw(5000);
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
		FIELDS(struct fuse_release_in, .fh = handle());
		break;
	case FUSE_FSYNC:
	case FUSE_FSYNCDIR:
		FIELDS(struct fuse_fsync_in, .fh = handle());
		break;
	case FUSE_FLUSH:
		FIELDS(struct fuse_flush_in, .fh = handle(), .lock_owner = draw(5));
		break;
	case FUSE_GETLK:
	case FUSE_SETLK:
	case FUSE_SETLKW:
		FIELDS(struct fuse_lk_in, .fh = handle(), .owner = draw(5), .lk_flags = (uint32_t)draw(2),
		       .lk = { .start = draw(3) ? draw(100) : number(), .end = number(), .type = (uint32_t)draw(4) });
		break;
	case FUSE_GETXATTR:
	case FUSE_LISTXATTR:
		FIELDS(struct fuse_getxattr_in, .size = (uint32_t)number());
		break;
	case FUSE_SETXATTR:
		memset(to, (int)draw(200), FUSE_COMPAT_SETXATTR_IN_SIZE);
		size = FUSE_COMPAT_SETXATTR_IN_SIZE;
		break;
	case FUSE_FALLOCATE:
		FIELDS(struct fuse_fallocate_in, .fh = handle(), .offset = draw(100000), .length = draw(100000),
		       .mode = (uint32_t)draw(4));
		break;
	case FUSE_LSEEK:
		FIELDS(struct fuse_lseek_in, .fh = handle(), .offset = number(), .whence = (uint32_t)draw(6));
		break;
	case FUSE_COPY_FILE_RANGE:
		FIELDS(struct fuse_copy_file_range_in, .fh_in = handle(), .fh_out = handle(), .nodeid_out = node(),
		       .off_in = number(), .off_out = draw(100000), .len = draw(100000));
		break;
	case FUSE_FORGET:
		FIELDS(struct fuse_forget_in, .nlookup = draw(3));
		break;
	case FUSE_BATCH_FORGET:
		FIELDS(struct fuse_batch_forget_in, .count = (uint32_t)number());
		break;
	case FUSE_INTERRUPT:
		FIELDS(struct fuse_interrupt_in, .unique = draw(1000));
		break;
	}
	for (uint64_t names = draw(3); names > 0; names--)
		size += name(to + size);
	return size;
}

static bool get(int from, void *to, size_t size)
{
	for (ssize_t got; size > 0; to = (char *)to + got, size -= (size_t)got)
		if ((got = read(from, to, size)) <= 0)
			return false;
	return true;
}

static void *listen_to(void *end)
{
	static uint8_t bytes[WIRE_LONGEST];
	struct wire_header head;
	struct fuse_entry_out entry;
	struct fuse_open_out open;
	unsigned nodes = 0, handles = 0;

	while (get(*(int *)end, &head, sizeof head) && get(*(int *)end, bytes, head.length)) {
		size_t size = head.length - sizeof(struct fuse_out_header);
		const uint8_t *body = bytes + sizeof(struct fuse_out_header);
		if (head.kind != WIRE_MESSAGE)
			continue;
		if (size == sizeof entry || size == sizeof entry + sizeof open) {
			memcpy(&entry, body, sizeof entry);
			told_nodes[nodes++ % LATE] = entry.nodeid;
			body += sizeof entry;
			size -= sizeof entry;
		}
		if (size == sizeof open) {
			memcpy(&open, body, sizeof open);
			told_owners[handles % LATE] = body > bytes + sizeof(struct fuse_out_header) ? entry.nodeid : 0;
			told_handles[handles++ % LATE] = open.fh;
		}
	}
	return NULL;
}

int main(int argc, char **argv)
{
	int ends[2];
	pthread_t thread;
	if (argc != 4 || socketpair(AF_UNIX, SOCK_STREAM, 0, ends) < 0)
		return 2;
	chance = strtoull(argv[1], NULL, 10) * 2654435769u + 1;
	shares[0] = (struct share){ .source = argv[3] };
	shares[1] = (struct share){ .source = argv[3], .readonly = true };
	share_count = 2;
	int window = memfd_create("window", 0);
	if (ftruncate(window, WIRE_SLOTS * WIRE_SLOT) < 0)
		return 2;
	uint8_t *slot = mmap(NULL, WIRE_SLOT, PROT_READ | PROT_WRITE, MAP_SHARED, window, 0);
	channel_open(ends[0], -1);
	pthread_create(&thread, NULL, listen_to, &ends[1]);
	watch_open();
	nodes_open(1024);
	locks_open();

	static uint8_t space[16384];
	for (uint64_t left = strtoull(argv[2], NULL, 10), unique = 1; left > 0; left--, unique++) {
		uint32_t opcode = (uint32_t)draw(draw(20) ? FUSE_COPY_FILE_RANGE + 1 : 60);
		/* Not often: nothing would grow. */
		if ((opcode == FUSE_INIT || opcode == FUSE_DESTROY) && draw(500))
			continue;
		memset(space, 0, 600);
		owner = 0;
		size_t size = body(opcode, space);
		if (draw(10) == 0)
			size = draw(size + 1);
		if (draw(10) == 0 && size > 0)
			space[draw(size)] = (uint8_t)draw(256);
		uint8_t *message = malloc(size + 1);
		memcpy(message, space, size);
		message[size] = 0;
		struct fuse_in_header head = {
			.len = (uint32_t)(sizeof head + size),
			.opcode = opcode,
			.unique = unique,
			.nodeid = owner && draw(4) ? owner : node(),
		};
		struct request request = { .head = &head, .body = message, .size = size, .slot_number = WIRE_NO_SLOT };
		if (draw(4) == 0) {
			request.slot = slot;
			request.slot_number = 0;
			request.filled = draw(2) ? (uint32_t)draw(WIRE_SLOT) : 0;
		}
		operate(&request);
		free(message);
		if (draw(10) == 0) {
			channel_flush();
			locks_settle();
			watch_drain();
		}
	}
	channel_flush();
	puts("done");
	return 0;
}
