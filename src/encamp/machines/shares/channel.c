/* The stream of messages between the guest and us, and the window beside it. Everything in it was
 * said by a stranger: lengths are looked at before anything is. */
#define _GNU_SOURCE
#include "server.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define OUT_SIZE (1u << 16)

static int channel;
static uint8_t *window;

/* One more than the longest, for a zero behind texts. */
static uint8_t in[sizeof(struct wire_header) + WIRE_LONGEST + 1];
static size_t in_begin, in_end;
static uint8_t out[OUT_SIZE];
static size_t out_used;

void channel_open(int fd, int window_fd)
{
	channel = fd;
	if (window_fd < 0)
		return;
	window = mmap(NULL, WIRE_SLOTS * WIRE_SLOT, PROT_READ | PROT_WRITE, MAP_SHARED, window_fd, 0);
	if (window == MAP_FAILED)
		fail("cannot map", "the window");
	close(window_fd);
}

static void broken(const char *how)
{
	errno = 0;
	fail("cannot understand the machine:", how);
}

/* Texts end with a zero only as long as a request is worked on: it stands where the next message
 * begins. */
static uint8_t *behind, kept;

static void restore(void)
{
	if (behind)
		*behind = kept;
	behind = NULL;
}

void channel_read(void)
{
	restore();
	if (in_begin > 0) {
		memmove(in, in + in_begin, in_end - in_begin);
		in_end -= in_begin;
		in_begin = 0;
	}
	ssize_t got = read(channel, in + in_end, sizeof in - 1 - in_end);
	if (got < 0 && errno == EINTR)
		return;
	if (got <= 0)
		_exit(0); /* The machine is gone. */
	in_end += (size_t)got;
}

bool channel_next(struct request *request)
{
	struct wire_header head;

	restore();
	if (in_end - in_begin < sizeof head)
		return false;
	memcpy(&head, in + in_begin, sizeof head);
	if (head.kind != WIRE_MESSAGE || head.length > WIRE_LONGEST ||
	    head.length < sizeof(struct fuse_in_header))
		broken("a message's length");
	if (in_end - in_begin < sizeof head + head.length)
		return false;
	if ((head.slot != WIRE_NO_SLOT || head.window > 0) &&
	    (!window || head.slot >= WIRE_SLOTS || head.window > WIRE_SLOT))
		broken("a place in the window");

	/* Messages may begin anywhere in the stream, but not in memory. */
	static union {
		struct fuse_in_header head;
		uint8_t bytes[sizeof(struct fuse_in_header)];
	} aligned;
	uint8_t *message = in + in_begin + sizeof head;
	memcpy(aligned.bytes, message, sizeof aligned);
	if (aligned.head.len != head.length + (uint64_t)head.window)
		broken("a message's own length");
	in_begin += sizeof head + head.length;
	behind = in + in_begin;
	kept = *behind;
	*behind = 0;
	*request = (struct request){
		.head = &aligned.head,
		.body = message + sizeof aligned,
		.size = head.length - sizeof aligned,
		.slot = head.slot == WIRE_NO_SLOT ? NULL : window + (size_t)head.slot * WIRE_SLOT,
		.filled = head.window,
		.slot_number = head.slot,
	};
	return true;
}

static void send_all(const uint8_t *from, size_t size)
{
	while (size > 0) {
		ssize_t sent = write(channel, from, size);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent <= 0)
			_exit(0);
		from += sent;
		size -= (size_t)sent;
	}
}

void channel_flush(void)
{
	send_all(out, out_used);
	out_used = 0;
}

static void put(const void *data, size_t size)
{
	if (size > OUT_SIZE - out_used)
		channel_flush();
	if (size > OUT_SIZE) {
		send_all(data, size);
		return;
	}
	if (size > 0)
		memcpy(out + out_used, data, size);
	out_used += size;
}

static void put_message(enum wire_kind kind, uint64_t unique, int error, const void *data, size_t size,
                        uint32_t in_window, uint32_t slot)
{
	struct fuse_out_header head = {
		.len = (uint32_t)(sizeof head + size + in_window),
		.error = error,
		.unique = unique,
	};
	struct wire_header wire = { kind, (uint32_t)(sizeof head + size), in_window, slot };
	put(&wire, sizeof wire);
	put(&head, sizeof head);
	put(data, size);
}

void answer(const struct request *request, int error, const void *data, size_t size)
{
	/* The kernel takes this error for "never ask again". */
	if (error == ENOSYS)
		error = EOPNOTSUPP;
	put_message(WIRE_MESSAGE, request->head->unique, -error, data, error ? 0 : size, 0, WIRE_NO_SLOT);
}

void answer_never(const struct request *request)
{
	put_message(WIRE_MESSAGE, request->head->unique, -ENOSYS, NULL, 0, 0, WIRE_NO_SLOT);
}

void answer_in_slot(const struct request *request, uint32_t size)
{
	put_message(WIRE_MESSAGE, request->head->unique, 0, NULL, 0, size, request->slot_number);
}

void answer_queued(uint64_t unique, int error)
{
	put_message(WIRE_QUEUED, unique, -error, NULL, 0, 0, WIRE_NO_SLOT);
}

void tell_hint(uint64_t nodeid, const struct fuse_attr_out *attributes)
{
	struct wire_hint hint = { nodeid, *attributes };
	struct wire_header wire = { WIRE_HINT, sizeof hint, 0, WIRE_NO_SLOT };
	put(&wire, sizeof wire);
	put(&hint, sizeof hint);
}

void tell(enum wire_kind what)
{
	struct wire_header wire = { what, 0, 0, WIRE_NO_SLOT };
	put(&wire, sizeof wire);
}

/* A notification has no number, and its kind where answers have their error. */
static void notify_node(enum wire_kind kind, uint64_t nodeid, int64_t from)
{
	struct fuse_notify_inval_inode_out what = { .ino = nodeid, .off = from };
	put_message(kind, 0, FUSE_NOTIFY_INVAL_INODE, &what, sizeof what, 0, WIRE_NO_SLOT);
}

void take_back_attributes(uint64_t nodeid)
{
	notify_node(WIRE_MESSAGE, nodeid, -1);
}

void take_back(uint64_t nodeid, enum taken_back what)
{
	notify_node(WIRE_QUEUED, nodeid, what == CONTENT ? 0 : -1);
}

void take_back_name(uint64_t parent, const char *name)
{
	struct {
		struct fuse_notify_inval_entry_out head;
		char name[256];
	} what = { .head = { .parent = parent, .namelen = (uint32_t)strlen(name) } };
	if (what.head.namelen >= sizeof what.name)
		return;
	memcpy(what.name, name, what.head.namelen + 1);
	put_message(WIRE_QUEUED, 0, FUSE_NOTIFY_INVAL_ENTRY, &what,
	            sizeof what.head + what.head.namelen + 1, 0, WIRE_NO_SLOT);
}
