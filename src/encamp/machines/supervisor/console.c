/* The device itself: a virtio-console with several ports, each of which has a name and a listening
 * socket of the host's behind it. What a client says goes from its socket straight into memory of the
 * guest, what the guest says the other way; neither is read before the other side has room for it. */
#define _GNU_SOURCE
#include "supervisor.h"

#include <errno.h>
#include <linux/virtio_console.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

struct port ports[PORTS_MOST];
unsigned port_count;

/* The guest's driver works: it may be told of ports. */
static bool ready;

/* Rounds in which all is done that can be: the sockets of clients hold no more. */
#define LAST_ROUNDS 64

/* At a time: the guest's driver has pieces of 4 KiB for input, and of up to 32 KiB for output. */
#define PIECES 64

/* The queues of port 0 are the first; those for control come next, for drivers that know one port. */
#define CONTROL_IN 2
#define CONTROL_OUT 3

static struct queue *input_of(const struct port *port)
{
	size_t number = (size_t)(port - ports);
	return &queues[number == 0 ? 0 : 2 * number + 2];
}

static struct queue *output_of(const struct port *port)
{
	return input_of(port) + 1;
}

void port_event(unsigned index, uint32_t events)
{
	(void)events;
	ports[index].knocked = true;
}

/* That there is room for the client is looked for only while there is none: else each time that it has
 * read something would be an event. */
#define ALWAYS (EPOLLIN | EPOLLRDHUP | EPOLLET)

void client_event(unsigned index, uint32_t events)
{
	struct port *port = &ports[index];

	if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
		port->readable = true;
	if (port->client < 0 || port->writable || !(events & (EPOLLOUT | EPOLLHUP | EPOLLERR)))
		return;
	port->writable = true;
	watch_again(port->client, ALWAYS, CLIENT, index);
}

/* The next one, once the guest knows that the last one has left. */
static bool client_accept(struct port *port)
{
	if (port->client >= 0 || port->told || !port->knocked)
		return false;
	port->client = accept4(port->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (port->client < 0) {
		port->knocked = false;
		return false;
	}
	port->readable = port->writable = true;
	port->deaf = false;
	watch(port->client, ALWAYS, CLIENT, (unsigned)(port - ports));
	return true;
}

static void client_left(struct port *port)
{
	close(port->client);
	port->client = -1;
	port->sent = 0;
}

/* From the client to the guest. */
static bool port_input(struct port *port)
{
	struct queue *queue = input_of(port);
	struct iovec pieces[PIECES];
	struct chain chains[PIECES];
	unsigned used = 0, count = 0;

	/* What nobody in the guest has opened, its driver throws away. */
	if (port->client < 0 || !port->readable || !port->opened)
		return false;
	unsigned waiting = queue_waiting(queue);
	if (waiting > port->buffers)
		port->buffers = (uint16_t)waiting;
	/* The guest gives its buffers back one by one, as it has read them: not each is worth a kick. */
	if (waiting == 0)
		return queue_ask(queue, port->buffers / 4);
	/* Chains without room take no pieces. */
	while (used < PIECES && count < PIECES && count < waiting) {
		used += queue_look(queue, count, true, 0, pieces + used, PIECES - used, &chains[count]);
		if (!chains[count++].whole)
			break;
	}
	if (used == 0)
		driven_wrongly("offers a buffer that has no room");
	ssize_t got = readv(port->client, pieces, (int)used);
	if (got < 0 && errno == EAGAIN) {
		port->readable = false;
		return false;
	}
	if (got < 0 && errno == EFAULT)
		fail("cannot reach", "the machine's memory");
	if (got <= 0) {
		client_left(port);
		return true;
	}
	uint64_t left = (uint64_t)got;
	for (unsigned i = 0; left > 0; i++) {
		uint64_t size = chains[i].size < left ? chains[i].size : left;
		queue_give(queue, chains[i].head, size);
		left -= size;
	}
	queue_publish(queue);
	return true;
}

/* From the guest to the client, or to nobody. */
static bool port_output(struct port *port)
{
	struct queue *queue = output_of(port);
	struct iovec pieces[PIECES];
	struct chain chains[PIECES];
	unsigned used = 0, count = 0;
	unsigned waiting = queue_waiting(queue);
	bool heard = port->client >= 0 && !port->deaf;

	if (waiting == 0)
		return queue_ask(queue, 0);
	if (heard && !port->writable)
		return false;
	while (used < PIECES && count < PIECES && count < waiting) {
		used += queue_look(queue, count, false, count == 0 ? port->sent : 0, pieces + used,
		                   PIECES - used, &chains[count]);
		if (!chains[count++].whole)
			break;
	}
	ssize_t went = 0;
	if (heard && used > 0) {
		went = writev(port->client, pieces, (int)used);
		if (went < 0 && errno == EAGAIN) {
			port->writable = false;
			watch_again(port->client, ALWAYS | EPOLLOUT, CLIENT, (unsigned)(port - ports));
			return false;
		}
		if (went < 0 && errno == EFAULT)
			fail("cannot reach", "the machine's memory");
		if (went < 0) {
			/* It has left, but may have said something before. */
			port->deaf = true;
			port->sent = 0;
			return true;
		}
	}
	uint64_t left = port->sent + (uint64_t)went;
	for (unsigned i = 0; i < count; i++) {
		if (heard && (!chains[i].whole || chains[i].size > left))
			break;
		left = chains[i].size < left ? left - chains[i].size : 0;
		queue_give(queue, chains[i].head, 0);
	}
	port->sent = left;
	queue_publish(queue);
	return true;
}

static bool control_say(uint32_t id, uint16_t event, uint16_t value, const char *text)
{
	struct queue *queue = &queues[CONTROL_IN];
	struct virtio_console_control head = { id, event, value };
	struct iovec piece;
	struct chain chain;

	/* The guest gives each buffer back when it has done what was said. */
	if (queue_waiting(queue) == 0 && !queue_ask(queue, 0))
		return false;
	queue_look(queue, 0, true, 0, &piece, 1, &chain);
	if (chain.size < sizeof head + strlen(text) || !chain.whole)
		driven_wrongly("has no room for what its device tells");
	memcpy(piece.iov_base, &head, sizeof head);
	memcpy((uint8_t *)piece.iov_base + sizeof head, text, strlen(text));
	queue_give(queue, chain.head, sizeof head + strlen(text));
	queue_publish(queue);
	return true;
}

/* Tell the guest the next thing that it does not know of a port. */
static bool control_tell(struct port *port)
{
	uint32_t id = (uint32_t)(port - ports);
	bool here = port->client >= 0;

	if (!ready)
		return false;
	if (!port->added)
		return port->added = control_say(id, VIRTIO_CONSOLE_PORT_ADD, 1, "");
	if (!port->ready)
		return false;
	if (!port->named)
		return port->named = control_say(id, VIRTIO_CONSOLE_PORT_NAME, 1, port->name);
	if (port->told == here || !control_say(id, VIRTIO_CONSOLE_PORT_OPEN, here, ""))
		return false;
	port->told = here;
	return true;
}

/* A driver that begins, maybe anew, knows nothing. */
static void forget_guest(struct port *port)
{
	port->added = port->ready = port->named = port->opened = port->told = false;
	port->sent = 0;
	port->buffers = 0;
}

static void control_hear(const struct virtio_console_control *said)
{
	if (said->event == VIRTIO_CONSOLE_DEVICE_READY) {
		ready = said->value;
		for (unsigned i = 0; i < port_count; i++)
			forget_guest(&ports[i]);
		return;
	}
	if (said->id >= port_count)
		return;
	if (said->event == VIRTIO_CONSOLE_PORT_READY) {
		ports[said->id].ready = said->value;
		ports[said->id].named = false;
	} else if (said->event == VIRTIO_CONSOLE_PORT_OPEN) {
		ports[said->id].opened = said->value;
	}
}

/* The guest's driver turns in a circle until it has its buffer back. */
static bool control_listen(void)
{
	struct queue *queue = &queues[CONTROL_OUT];
	struct virtio_console_control said;
	struct iovec piece;
	struct chain chain;
	unsigned waiting = queue_waiting(queue);

	if (waiting == 0)
		return queue_ask(queue, 0);
	for (; waiting > 0; waiting--) {
		unsigned used = queue_look(queue, 0, false, 0, &piece, 1, &chain);
		if (used == 1 && piece.iov_len >= sizeof said) {
			memcpy(&said, piece.iov_base, sizeof said);
			control_hear(&said);
		}
		queue_give(queue, chain.head, 0);
	}
	queue_publish(queue);
	return true;
}

bool console_pump(void)
{
	bool more = control_listen();

	for (unsigned i = 0; i < port_count; i++) {
		struct port *port = &ports[i];
		more |= port_output(port);
		more |= port_input(port);
		more |= client_accept(port);
		more |= control_tell(port);
	}
	return more;
}

void console_finish(void)
{
	for (int rounds = 0; rounds < LAST_ROUNDS && console_pump(); rounds++)
		;
}
