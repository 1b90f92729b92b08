/* What goes between a machine's guest program and the share server of its host: FUSE's own messages,
 * each behind the header below, in one stream of bytes (a virtio-serial port, a socket).
 *
 * The data of large reads and writes can lie beside the stream, in a window that both ends see: to
 * the guest it is a small disk, to the server a file in memory. The guest alone gives its slots out.
 * A slot carries the data of one write, or is lent for the answer to one read.
 *
 * Both ends are of one version: the guest program is handed to the machine by its host.
 */
#ifndef ENCAMP_SHARES_WIRE_H
#define ENCAMP_SHARES_WIRE_H

#include <linux/fuse.h>
#include <stdint.h>

#define WIRE_MOST (1u << 20)              /* bytes of data in one read or write */
#define WIRE_LONGEST (WIRE_MOST + 4096)   /* bytes of one FUSE message, header included */
#define WIRE_INLINE 8192                  /* data up to this size never lies in the window */
#define WIRE_SLOT WIRE_MOST               /* bytes of a slot */
#define WIRE_SLOTS 4
#define WIRE_NO_SLOT 0xffffffffu

/* The window's disk bears this serial number. */
#define WIRE_WINDOW "encamp-window"
/* The port's name in the machine. */
#define WIRE_PORT "encamp.shares"

enum wire_kind {
	/* To the server: a request. To the guest: an answer, or a notification that never waits. */
	WIRE_MESSAGE,
	/* To the guest: an answer or a notification that is to be handed to the kernel in the order
	 * of those of this kind, by a thread of their own: the kernel may wait for other answers
	 * before it takes a notification. */
	WIRE_QUEUED,
	/* To the guest: a `struct wire_hint` instead of a message. */
	WIRE_HINT,
	/* To the guest: nothing more comes of this mount; it answers FUSE_DESTROY. No payload. */
	WIRE_END,
	/* To the guest, behind the answer to FUSE_INIT: closing a file of these shares writes it to
	 * another host, so the server is to hear of it. No payload. */
	WIRE_CLOSES,
	/* To the guest: its kernel is to forget all that it need not know. No payload. */
	WIRE_CROWDED,
};

struct wire_header {
	uint32_t kind;
	uint32_t length;   /* bytes that follow in the stream: all of the message but what is in `slot` */
	uint32_t window;   /* bytes of its end that lie at the slot's beginning; 0: none */
	uint32_t slot;     /* a read that has window 0 and a slot lends it for its answer */
};

/* Before the answer to a change: the attributes of the directory as the change has left it. The kernel will ask
 * for them next: whoever has this can spare the way. */
struct wire_hint {
	uint64_t nodeid;
	struct fuse_attr_out attributes;
};

/* One file system shows all shares of a machine: its root has a directory for each, called by its
 * number in decimal digits. Only root of the machine may look into it: by there a share that is bound
 * for reading only could be written to, unless its server refuses that, too.
 *
 * The kernel says nothing when a file system is unmounted: the guest program sends FUSE_DESTROY, with a
 * unique of all ones. The answer to a read may come in the stream although a slot was lent. */

#endif
