/* What the parts of the supervisor share: see main.c for what it is. There is one thread; nothing in
 * it waits but the loop in main.c. */
#ifndef ENCAMP_SUPERVISOR_H
#define ENCAMP_SUPERVISOR_H

#include <linux/virtio_ring.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

/* ── main.c ──────────────────────────────────────────────────────────────────────────────────── */

void fail(const char *what, const char *about) __attribute__((noreturn));
/* The machine does with its device what no driver would: it is ended. */
void driven_wrongly(const char *how) __attribute__((noreturn));

enum kind { SIGNALS, DOOR, WIRE, LISTENER, CLIENT, MONITOR, ASKER };
/* Have the loop look for events of a descriptor, which is number `index` of its kind, until it is
 * closed. */
void watch(int fd, uint32_t events, enum kind kind, unsigned index);
/* From now on look for others. */
void watch_again(int fd, uint32_t events, enum kind kind, unsigned index);

/* ── kernel.c: the machine's kernel, a child of ours ─────────────────────────────────────────── */

/* Where the kernel meets its device. */
#define DOOR_NAME "vhost"

/* Start it: words[0] with the words, and with some of ours before those. `mask`: its signals'. */
/* Of a kernel that needs a C library of its own, its loader and that; they have numbers above 9. */
extern int kernel_loader, kernel_library;
void kernel_start(char **words, const char *console, const sigset_t *mask);
pid_t kernel_pid(void);
/* Has it ended? Then all its processes have, and `ended` is as waitpid says. */
bool kernel_ended(int *ended);
/* End it and all its processes. */
void kernel_kill(void);
/* Remove what it and we have made. A handler of signals may do so. */
void kernel_clear(void);
bool kernel_paused(void);
/* NULL, or why it cannot be done. */
const char *kernel_pause(void);
void kernel_resume(void);

/* ── vhost.c: the device's wire ──────────────────────────────────────────────────────────────── */

/* The driver in the kernel does not make more. */
#define QUEUES_MOST 64

void vhost_listen(void);
/* Somebody knocks. */
void vhost_accept(void);
/* Speak to the kernel by this descriptor. */
void vhost_open(int fd);
bool vhost_is_open(void);
/* Handle some of what the kernel has said; false when it has hung up. */
bool vhost_read(void);
/* Interrupt the guest for a queue. */
void vhost_call(unsigned index);
/* The same for those that there was no room for; false if there still is none. */
bool vhost_call_again(void);

/* ── memory.c: the machine's memory, as the kernel shows it to its device ────────────────────── */

#define REGIONS_MOST 2
struct memory_table {
	uint32_t count, padding;
	struct {
		uint64_t guest, size, user, offset;
	} regions[REGIONS_MOST];
};

/* Map it, from files that are open, in place of what was shown before. */
void memory_map(const struct memory_table *table, const int *files);
/* The memory at an address of the guest's; NULL unless all of it is there. */
void *memory_at(uint64_t address, uint64_t size);
/* The same at an address of the kernel's process, for a part of a queue; the machine is ended if it
 * is not there. */
void *memory_of_queue(uint64_t address, uint64_t size, unsigned alignment);

/* ── ring.c: virtqueues, in memory that the guest can change at any time ─────────────────────── */

struct queue {
	bool runs;
	uint16_t size;         /* a power of two */
	uint16_t taken;        /* chains, modulo 65536, as are all that follow */
	uint16_t given;        /* of these back to the guest */
	uint16_t published;    /* of these that it can see */
	uint16_t event;        /* the guest kicks when it has made one more available than this */
	struct vring_desc *descriptors;
	struct vring_avail *available;
	struct vring_used *used;
};

/* A chain of descriptors: one buffer of the guest's. */
struct chain {
	uint16_t head;
	uint64_t size;
	bool whole;            /* all its pieces had room */
};

extern struct queue queues[QUEUES_MOST];

void queue_start(struct queue *queue);
/* How many chains wait to be taken. */
unsigned queue_waiting(struct queue *queue);
/* Have the guest kick when more than so many wait. True: they do already. */
bool queue_ask(struct queue *queue, unsigned most);
/* Look at a chain that waits, `ahead` of it are others. Its pieces from an offset on are put into at
 * most `most`; returns into how many. */
unsigned queue_look(const struct queue *queue, unsigned ahead, bool writable, uint64_t offset,
                    struct iovec *pieces, unsigned most, struct chain *chain);
/* Give the next chain back with so many bytes written into it; the guest learns of it with others, */
void queue_give(struct queue *queue, uint16_t head, uint64_t written);
/* now. */
void queue_publish(struct queue *queue);

/* ── console.c: the device behind the wire, a virtio-console with named ports ────────────────── */

#define PORTS_MOST (QUEUES_MOST / 2 - 1)

struct port {
	const char *name;
	int listener, client;
	bool knocked;          /* somebody may wait to be accepted */
	bool readable, writable;
	bool deaf;             /* the client has left, and what it has said is not all read yet */
	bool added, ready, named; /* the guest was told of it, is ready for it, was told its name */
	bool opened;           /* by a program of the guest's */
	bool told;             /* the guest believes that there is a client */
	uint64_t sent;         /* bytes of the first chain that its output begins with */
	uint16_t buffers;      /* the most that there were for its input at a time */
};

extern struct port ports[PORTS_MOST];
extern unsigned port_count;

void port_event(unsigned index, uint32_t events);
void client_event(unsigned index, uint32_t events);
/* Do what can be done. True: there is more of it. */
bool console_pump(void);
/* Do all of it, within reason. */
void console_finish(void);

/* ── monitor.c: whoever asks and commands us ─────────────────────────────────────────────────── */

void monitor_open(int fd);
void monitor_accept(void);
void asker_event(unsigned index);

#endif
