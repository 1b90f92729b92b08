/* The wire between the device and the kernel: vhost-user, as far as virtio_uml of the kernel speaks it.
 * Kicks and interrupts are messages, too ("in band"): so the only descriptors that we are given are the
 * machine's memory and the socket for interrupts, and neither can make us wait.
 *
 * Who says all this is the kernel's process, which a guest may have in its hands. */
#define _GNU_SOURCE
#include "supervisor.h"

#include <errno.h>
#include <linux/virtio_config.h>
#include <linux/virtio_console.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Of the protocol, the part that virtio_uml knows. */
enum request {
	GET_FEATURES = 1,
	SET_FEATURES = 2,
	SET_OWNER = 3,
	SET_MEMORY = 5,
	SET_RING_SIZE = 8,
	SET_RING_PLACE = 9,
	SET_RING_BASE = 10,
	GET_PROTOCOL_FEATURES = 15,
	SET_PROTOCOL_FEATURES = 16,
	ENABLE_RING = 18,
	SET_CALLS = 21,
	GET_CONFIG = 24,
	KICK = 35,
};
#define CALL 4 /* said by us, by the socket for interrupts */

#define VERSION 1u
#define REPLY 4u
#define WANTS_REPLY 8u
#define BIT(number) (1ull << (number))
#define PROTOCOL_FEATURES 30
static const uint64_t features = BIT(VIRTIO_F_VERSION_1) | BIT(VIRTIO_RING_F_EVENT_IDX) |
                                 BIT(VIRTIO_CONSOLE_F_MULTIPORT);
/* Acknowledgements, the socket for interrupts, the configuration, messages as kicks and interrupts.
 *
 * The kernel waits until each kick is acknowledged: so what the guest has said is taken by then. It can
 * be its last word: drivers of a machine that is switched off take their buffers back, and do not say so
 * before. */
static const uint64_t protocol_features = BIT(3) | BIT(5) | BIT(9) | BIT(14);

#define RING_MOST 1024
#define HEADER 12
struct message {
	uint32_t request, flags, size;
	union {
		uint64_t number;
		struct {
			uint32_t index, value;
		} ring;
		struct {
			uint32_t index, flags;
			uint64_t descriptors, used, available, log;
		} place;
		struct memory_table memory;
		struct {
			uint32_t offset, size, flags;
			struct virtio_console_config config;
		} config;
	};
} __attribute__((packed));

static int door = -1, wire = -1, calls = -1;
/* Queues for which the guest is still to be interrupted. */
static uint64_t owed;
/* Said, but not handled: the beginning of a message. */
static uint8_t said[4096];
static size_t said_count;
/* Descriptors that came with what was said last, and belong to the next message that wants some. */
static int passed[REGIONS_MOST];
static unsigned passed_count;

void vhost_listen(void)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX, .sun_path = DOOR_NAME };

	unlink(DOOR_NAME);
	door = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (door < 0 || bind(door, (struct sockaddr *)&name, sizeof name) < 0 || listen(door, 1) < 0)
		fail("cannot listen at", DOOR_NAME);
	watch(door, EPOLLIN, DOOR, 0);
}

void vhost_accept(void)
{
	struct ucred who;
	socklen_t size = sizeof who;
	int fd = accept4(door, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0)
		return;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) < 0 || who.pid != kernel_pid()) {
		close(fd);
		return;
	}
	/* There is one kernel, and it has come. */
	close(door);
	unlink(DOOR_NAME);
	vhost_open(fd);
	watch(fd, EPOLLIN, WIRE, 0);
}

void vhost_open(int fd)
{
	wire = fd;
}

bool vhost_is_open(void)
{
	return wire >= 0;
}

static void set_memory(const struct message *message)
{
	struct memory_table table = message->memory; /* A message is not aligned. */

	if (table.count == 0 || table.count > passed_count || message->size != 8 + 32 * table.count)
		driven_wrongly("shows no memory");
	for (unsigned i = 0; i < QUEUES_MOST; i++) {
		/* A driver that is bound a second time has stopped them all before. */
		if (queues[i].runs)
			driven_wrongly("moves its memory while its device works");
		queues[i] = (struct queue){ 0 };
	}
	memory_map(&table, passed);
}

static struct queue *stopped(uint32_t index)
{
	if (index >= 2 * (port_count + 1) || queues[index].runs)
		driven_wrongly("sets up a queue that is not there, or that works");
	return &queues[index];
}

static void set_size(uint32_t index, uint32_t size)
{
	if (size == 0 || size > RING_MOST || (size & (size - 1)) != 0)
		driven_wrongly("has a queue of an impossible size");
	*stopped(index) = (struct queue){ .size = (uint16_t)size };
}

static void set_place(const struct message *message)
{
	struct queue *queue = stopped(message->place.index);
	uint64_t size = queue->size;

	/* Behind each of the two rings is the number of an event. */
	queue->descriptors = memory_of_queue(message->place.descriptors, size * sizeof(struct vring_desc), 16);
	queue->available = memory_of_queue(message->place.available, sizeof(struct vring_avail) + 2 * size + 2, 2);
	queue->used = memory_of_queue(message->place.used,
	                              sizeof(struct vring_used) + size * sizeof(struct vring_used_elem) + 2, 4);
}

static void enable(uint32_t index, bool enabled)
{
	if (!enabled && index < QUEUES_MOST) {
		/* What the guest has said before it switched itself off is still to be heard. */
		if (queues[index].runs)
			console_finish();
		queues[index].runs = false;
		return;
	}
	struct queue *queue = stopped(index);
	if (!queue->used || queue->size == 0)
		driven_wrongly("starts a queue that is nowhere");
	queue_start(queue);
}

static void set_calls(void)
{
	struct sockaddr_un name;
	socklen_t size = sizeof name;

	if (passed_count != 1 || calls >= 0 ||
	    getsockname(passed[0], (struct sockaddr *)&name, &size) < 0 || name.sun_family != AF_UNIX)
		driven_wrongly("shows no socket for interrupts");
	calls = passed[0];
	passed_count = 0;
}

static void answer(struct message *message, uint32_t size)
{
	message->flags = VERSION | REPLY;
	message->size = size;
	/* There is room: the kernel waits for each answer. */
	if (send(wire, message, HEADER + size, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)(HEADER + size) &&
	    errno != EPIPE && errno != ECONNRESET)
		driven_wrongly("asks and does not listen");
}

static void tell_config(struct message *message)
{
	uint32_t size = message->config.size;

	if (message->config.offset != 0 || size > sizeof message->config.config || message->size != HEADER + size)
		driven_wrongly("asks for a configuration of another kind");
	message->config.config = (struct virtio_console_config){ .max_nr_ports = port_count };
	answer(message, HEADER + size);
}

static void handle(struct message *message)
{
	switch (message->request) {
	case GET_FEATURES:
		message->number = features | BIT(PROTOCOL_FEATURES);
		answer(message, sizeof message->number);
		return;
	case GET_PROTOCOL_FEATURES:
		message->number = protocol_features;
		answer(message, sizeof message->number);
		return;
	case SET_FEATURES:
		if ((message->number & features) != features)
			driven_wrongly("lacks what its device needs");
		return;
	case SET_PROTOCOL_FEATURES:
		if (message->number != protocol_features)
			driven_wrongly("lacks what its device needs");
		return;
	case SET_OWNER:
		return;
	case SET_CALLS:
		set_calls();
		return;
	case SET_MEMORY:
		set_memory(message);
		return;
	case SET_RING_SIZE:
		set_size(message->ring.index, message->ring.value);
		return;
	case SET_RING_PLACE:
		set_place(message);
		return;
	case SET_RING_BASE:
		stopped(message->ring.index)->taken = (uint16_t)message->ring.value;
		return;
	case ENABLE_RING:
		enable(message->ring.index, message->ring.value);
		return;
	case GET_CONFIG:
		tell_config(message);
		return;
	case KICK:
		console_pump();
		return;
	default:
		driven_wrongly("asks its device for what that does not know");
	}
}

/* What a message has of fields that it did not bring is zero. */
static size_t take(const uint8_t *from, size_t count)
{
	struct message message = { 0 };

	if (count < HEADER)
		return 0;
	memcpy(&message, from, HEADER);
	if (message.size > sizeof message - HEADER)
		driven_wrongly("says more to its device than there is to say");
	if (count < HEADER + message.size)
		return 0;
	memcpy(&message, from, HEADER + message.size);
	uint32_t size = message.size;
	bool waits = message.flags & WANTS_REPLY;
	handle(&message);
	if (waits) {
		message.number = 0;
		answer(&message, sizeof message.number);
	}
	return HEADER + size;
}

static void drop_passed(void)
{
	while (passed_count > 0)
		close(passed[--passed_count]);
}

static void keep_passed(struct msghdr *head)
{
	struct cmsghdr *part = CMSG_FIRSTHDR(head);

	if (!part || part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
		return;
	drop_passed();
	passed_count = (unsigned)((part->cmsg_len - CMSG_LEN(0)) / sizeof *passed);
	memcpy(passed, CMSG_DATA(part), passed_count * sizeof *passed);
}

bool vhost_read(void)
{
	union {
		struct cmsghdr head;
		uint8_t bytes[CMSG_SPACE(sizeof passed)];
	} control;
	struct iovec free = { said + said_count, sizeof said - said_count };
	struct msghdr head = { .msg_iov = &free, .msg_iovlen = 1,
	                       .msg_control = &control, .msg_controllen = sizeof control };
	ssize_t got = recvmsg(wire, &head, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	if (got < 0 && (errno == EINTR || errno == EAGAIN))
		return true;
	if (got <= 0) {
		close(wire);
		wire = -1;
		return false;
	}
	keep_passed(&head);
	said_count += (size_t)got;
	size_t done = 0;
	for (size_t length; (length = take(said + done, said_count - done)) > 0;)
		done += length;
	said_count -= done;
	memmove(said, said + done, said_count);
	if (said_count == 0)
		drop_passed();
	return true;
}

void vhost_call(unsigned index)
{
	const struct {
		uint32_t request, flags, size, index, value;
	} call = { CALL, VERSION, 8, index, 0 };

	owed &= ~BIT(index);
	if (calls >= 0 && send(calls, &call, sizeof call, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno == EAGAIN)
		owed |= BIT(index);
}

bool vhost_call_again(void)
{
	for (uint64_t left = owed; left != 0; left &= left - 1)
		vhost_call((unsigned)__builtin_ctzll(left));
	return owed == 0;
}
