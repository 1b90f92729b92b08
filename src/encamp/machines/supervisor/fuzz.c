/* encamp-supervisor-fuzz SEED CASES: a kernel that means harm, and no kernel.
 *
 * Each case is a process of its own. It sets up the device as the kernel would, though not without
 * faults, and then drives it: with sound buffers and damaged ones, with messages that nobody should
 * send, and while another thread writes to the rings. It may end with the sentence that the machine
 * is driven wrongly, but not otherwise: the sanitizers, with which `make fuzz` builds this, notice
 * who reads what is not his, and memory ends where nothing is.
 */
#define _GNU_SOURCE
#include "supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/virtio_console.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MEMORY 0x80000u
#define GUEST 0x100000u        /* where the guest sees its memory begin, */
#define USER 0x7000000u        /* and the kernel's process */
#define BUFFERS 0x40000u       /* above: what is in buffers; below: rings, 8 KiB for each queue */
#define RINGS 0x2000u
#define NOTHING 0x400000u      /* bytes before and behind memory that cannot be touched */
#define PORTS 3
#define STEPS 400

static uint64_t chance;
static uint8_t *memory;
static int wire, ends[PORTS];
static uint16_t sizes[QUEUES_MOST], made[QUEUES_MOST];
/* Of late, buffers have no room at all. */
static bool hollow;

static uint64_t draw(uint64_t below)
{
	chance ^= chance << 13;
	chance ^= chance >> 7;
	chance ^= chance << 17;
	return below ? (chance >> 11) % below : 0;
}

static uint64_t number(void)
{
	static const uint64_t edges[] = { 0, 1, 4095, 4096, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX, GUEST,
	                                  GUEST + MEMORY, GUEST - 1, USER, USER + MEMORY };
	return draw(3) ? draw(5000) : edges[draw(sizeof edges / sizeof *edges)];
}

/* Mostly what it is, but not always. */
static uint64_t about(uint64_t what, unsigned seldom)
{
	return draw(seldom) ? what : draw(2) ? number() : what + draw(3) - 1;
}

/* What the kernel says of a region is looked at; that it ends where it says is to be noticed. */
void *guarded_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
	if (fd < 0 || size > 16 * MEMORY || size % 4096)
		return (void *)syscall(SYS_mmap, at, size, protection, flags, fd, offset);
	long whole = syscall(SYS_mmap, NULL, size + 2 * NOTHING, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return (void *)syscall(SYS_mmap, whole + NOTHING, size, protection, flags | MAP_FIXED, fd, offset);
}

void fail(const char *what, const char *about_what)
{
	/* The kernel of this host was given an address that it could not use. */
	if (errno == EFAULT) {
		fprintf(stderr, "%s %s\n", what, about_what);
		abort();
	}
	_exit(0);
}

void driven_wrongly(const char *how)
{
	if (getenv("FUZZ_SAYS"))
		fprintf(stderr, "%s\n", how);
	_exit(0);
}

void watch(int fd, uint32_t events, enum kind kind, unsigned index)
{
	(void)fd, (void)events, (void)kind, (void)index;
}

void watch_again(int fd, uint32_t events, enum kind kind, unsigned index)
{
	(void)fd, (void)events, (void)kind, (void)index;
}

pid_t kernel_pid(void)
{
	return 1;
}

static void say(uint32_t request, const void *body, uint32_t size, const int *fds, size_t count)
{
	uint8_t bytes[512] = { 0 };
	uint32_t flags = draw(2) ? 1 : 9;
	uint32_t head[] = { (uint32_t)about(request, 300), flags, (uint32_t)about(size, 300) };
	union {
		struct cmsghdr head;
		uint8_t bytes[CMSG_SPACE(sizeof(int) * 8)];
	} control = { 0 };
	struct iovec piece = { bytes, sizeof head + size };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1 };

	memcpy(bytes, head, sizeof head);
	if (size > 0)
		memcpy(bytes + sizeof head, body, size);
	if (count > 0) {
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(count * sizeof *fds);
		control.head.cmsg_level = SOL_SOCKET;
		control.head.cmsg_type = SCM_RIGHTS;
		control.head.cmsg_len = CMSG_LEN(count * sizeof *fds);
		memcpy(CMSG_DATA(&control.head), fds, count * sizeof *fds);
	}
	if (draw(500) == 0)
		piece.iov_len = draw(piece.iov_len) + 1;
	sendmsg(wire, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
	vhost_read();
	uint8_t heard[4096];
	while (recv(wire, heard, sizeof heard, MSG_DONTWAIT) > 0)
		;
}

static void say_two(uint32_t request, uint64_t first, uint64_t second)
{
	uint32_t body[] = { (uint32_t)first, (uint32_t)second };
	say(request, body, sizeof body, NULL, 0);
}

static void set_up(int file)
{
	int calls[8] = { 0 };
	uint64_t features = 1ull << 32 | 1ull << 30 | 1ull << 29 | 1ull << 1;
	uint64_t table[] = { 1, GUEST, about(MEMORY, 100), USER, about(0, 100) };

	say(3, NULL, 0, NULL, 0);
	say(1, NULL, 0, NULL, 0);
	say(2, &features, sizeof features, NULL, 0);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, calls) == 0)
		say(21, NULL, 0, calls, about(1, 300) & 7);
	say(5, table, sizeof table, &file, 1);
	for (unsigned i = 0; i < 2 * (PORTS + 1); i++) {
		uint64_t at = USER + i * RINGS;
		sizes[i] = (uint16_t)(1u << draw(9));
		say_two(8, about(i, 300), about(sizes[i], 300));
		say_two(10, i, about(0, 100));
		made[i] = 0;
		uint64_t place[] = { i, about(at, 300), about(at + 0x1800, 300), about(at + 0x1000, 300), UINT64_MAX };
		say(9, place, sizeof place, NULL, 0);
		say_two(18, about(i, 300), about(1, 100));
	}
}

/* A buffer of a few pieces, made available as the guest's driver does. */
static void offer(unsigned index, bool writable, const void *content, size_t size)
{
	struct vring_desc *descriptors = (void *)(memory + index * RINGS);
	uint16_t *available = (void *)(memory + index * RINGS + 0x1000);
	const uint16_t *used = (const void *)(memory + index * RINGS + 0x1800);
	unsigned mask = sizes[index] - 1, pieces = 1;
	uint32_t first = BUFFERS + (uint32_t)draw(MEMORY - BUFFERS - 8192);

	if (size > 0 && draw(10) == 0)
		first = MEMORY - (uint32_t)size;
	if ((uint16_t)(made[index] - used[1]) >= sizes[index] && draw(2000))
		return;
	if (index != 2 && index != 3)
		pieces += (unsigned)draw(draw(8) ? 2 : sizes[index]);

	for (unsigned i = 0; i < pieces; i++) {
		uint16_t flags = (writable ? VRING_DESC_F_WRITE : 0) | (i + 1 < pieces ? VRING_DESC_F_NEXT : 0);
		descriptors[(made[index] + i) & mask] = (struct vring_desc){
			.addr = about(GUEST + first, 2000),
			.len = (uint32_t)about(hollow ? 0 : size ? size : draw(4097), 2000),
			.flags = (uint16_t)about(flags, 2000),
			.next = (uint16_t)about((made[index] + i + 1) & mask, 2000),
		};
	}
	if (content)
		memcpy(memory + first, content, size);
	available[2 + (made[index] & mask)] = (uint16_t)about(made[index] & mask, 2000);
	made[index]++;
	__atomic_store_n(&available[1], (uint16_t)about(made[index], 3000), __ATOMIC_RELEASE);
}

static void control(void)
{
	struct virtio_console_control said = {
		.id = (uint32_t)about(draw(PORTS), 20),
		.event = (uint16_t)(draw(10) ? (draw(2) ? VIRTIO_CONSOLE_PORT_READY : VIRTIO_CONSOLE_PORT_OPEN) : draw(10)),
		.value = draw(10) != 0,
	};
	offer(3, false, &said, sizeof said);
}

static void speak(unsigned port)
{
	static uint8_t bytes[100000];
	int pair[2];

	switch (draw(8)) {
	case 0:
		close(ends[port]);
		ends[port] = -1;
		break;
	case 1:
		if (ends[port] < 0 && ports[port].client < 0 &&
		    socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0) {
			ends[port] = pair[0];
			ports[port].client = pair[1];
			ports[port].deaf = false;
		}
		break;
	case 2:
	case 3:
		while (recv(ends[port], bytes, sizeof bytes, 0) > 0)
			;
		break;
	default:
		send(ends[port], bytes, draw(sizeof bytes), MSG_NOSIGNAL);
	}
	ports[port].readable = ports[port].writable = true;
}

static void *scribble(void *seed)
{
	uint64_t own = (uint64_t)(uintptr_t)seed;
	for (;;) {
		own = own * 6364136223846793005u + 1442695040888963407u;
		uint32_t place = (uint32_t)(own >> 33) % (2 * (PORTS + 1) * RINGS);
		*(volatile uint8_t *)(memory + place) = (uint8_t)(own >> 20);
		if (own >> 57 == 0)
			usleep(50);
	}
	return NULL;
}

static void step(void)
{
	unsigned port = (unsigned)draw(PORTS), queue = port ? 2 * port + 2 : 0;

	switch (draw(12)) {
	case 0:
		if (draw(20) == 0)
			say_two((uint32_t)draw(40), draw(10), number());
		break;
	case 1:
		control();
		break;
	case 2:
	case 3:
		speak(port);
		break;
	case 4:
		offer(2, true, NULL, draw(20) ? 4096 : draw(30));
		break;
	case 5:
	case 6:
	case 7:
		hollow = draw(30) == 0;
		for (uint64_t count = draw(hollow ? 300 : 20); count > 0; count--)
			offer(queue, true, NULL, draw(3) ? 4096 : 0);
		break;
	case 8:
	case 9:
		for (uint64_t count = draw(20); count > 0; count--)
			offer(queue + 1, false, NULL, 0);
		break;
	case 10:
		if (draw(30) == 0)
			memory[draw(MEMORY)] = (uint8_t)draw(256);
		break;
	default:
		say_two(35, draw(8), 0);
	}
	for (int rounds = 0; rounds < 4 && console_pump(); rounds++)
		;
	vhost_call_again();
}

static _Noreturn void run(void)
{
	static const char *const names[PORTS] = { "encamp.0", "encamp.1", "encamp.2" };
	struct virtio_console_control begin = { .event = VIRTIO_CONSOLE_DEVICE_READY, .value = 1 };
	int pair[2], file = memfd_create("memory", 0);
	pthread_t thread;

	if (ftruncate(file, MEMORY) < 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0)
		_exit(2);
	memory = (uint8_t *)syscall(SYS_mmap, NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	wire = pair[0];
	vhost_open(pair[1]);
	for (port_count = 0; port_count < PORTS; port_count++) {
		ports[port_count] = (struct port){ .name = names[port_count], .listener = -1, .client = -1 };
		ends[port_count] = -1;
	}
	set_up(file);
	offer(3, false, &begin, sizeof begin);
	if (draw(3) == 0)
		pthread_create(&thread, NULL, scribble, (void *)(uintptr_t)chance);
	for (int steps = 0; steps < STEPS; steps++)
		step();
	_exit(3);
}

int main(int argc, char **argv)
{
	unsigned cases = argc == 3 ? (unsigned)atoi(argv[2]) : 0, unharmed = 0;
	uint64_t seed = argc == 3 ? strtoull(argv[1], NULL, 10) : 0;

	signal(SIGPIPE, SIG_IGN);
	for (unsigned i = 0; i < cases; i++) {
		int status;
		pid_t child = fork();
		if (child == 0) {
			chance = (seed * 1000003 + i) * 2654435769u + 1;
			alarm(60);
			run();
		}
		waitpid(child, &status, 0);
		if (!WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 3)) {
			printf("case %u of seed %llu: %x\n", i, (unsigned long long)seed, (unsigned)status);
			return 1;
		}
		unharmed += WEXITSTATUS(status) == 3;
	}
	/* Cases that were not found wrong: without any, little would have been tried. */
	printf("done, %u to the end\n", unharmed);
	return 0;
}
