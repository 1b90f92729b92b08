/* Virtqueues, from the device's side. The guest owns the memory that they are in and may write to it
 * at any time: each value is read once, and checked before it is used. */
#define _GNU_SOURCE
#include "supervisor.h"

struct queue queues[QUEUES_MOST];

#define ONCE(place) __atomic_load_n(&(place), __ATOMIC_RELAXED)

void queue_start(struct queue *queue)
{
	queue->given = queue->published = ONCE(queue->used->idx);
	queue->event = queue->taken - 1;
	queue->runs = true;
}

unsigned queue_waiting(struct queue *queue)
{
	if (!queue->runs)
		return 0;
	/* The chains were written before their number was. */
	uint16_t end = __atomic_load_n(&queue->available->idx, __ATOMIC_ACQUIRE);
	uint16_t waiting = end - queue->taken;
	if (waiting <= queue->size)
		return waiting;
	/* A driver that leaves the device, as when the machine is switched off, takes its buffers back,
	 * also those that it has not seen used, and only then stops the queue. */
	queue->runs = false;
	return 0;
}

bool queue_ask(struct queue *queue, unsigned most)
{
	uint16_t event = queue->taken + most;
	if (!queue->runs)
		return false;
	if (event != queue->event) {
		queue->event = event;
		__atomic_store_n((__virtio16 *)&queue->used->ring[queue->size], event, __ATOMIC_RELAXED);
		/* Either the guest sees this when it has added a chain, or we see the chain. */
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
	}
	return queue_waiting(queue) > most;
}

unsigned queue_look(const struct queue *queue, unsigned ahead, bool writable, uint64_t offset,
                    struct iovec *pieces, unsigned most, struct chain *chain)
{
	uint16_t place = (queue->taken + ahead) & (queue->size - 1);
	uint16_t next = ONCE(queue->available->ring[place]);
	unsigned used = 0;

	*chain = (struct chain){ .head = next, .whole = true };
	for (unsigned length = 0;; length++) {
		/* A chain that is longer than the table has a ring in it. */
		if (next >= queue->size || length == queue->size)
			driven_wrongly("makes a chain of no end");
		struct vring_desc *descriptor = &queue->descriptors[next];
		uint64_t address = ONCE(descriptor->addr);
		uint32_t size = ONCE(descriptor->len);
		uint16_t flags = ONCE(descriptor->flags);
		next = ONCE(descriptor->next);
		if (flags & VRING_DESC_F_INDIRECT || !(flags & VRING_DESC_F_WRITE) == writable)
			driven_wrongly("offers a buffer of another kind than its queue's");
		uint8_t *memory = memory_at(address, size);
		if (!memory)
			driven_wrongly("offers a buffer outside its memory");
		chain->size += size;
		if (offset >= size) {
			offset -= size;
		} else if (used < most) {
			pieces[used++] = (struct iovec){ memory + offset, size - offset };
			offset = 0;
		} else {
			chain->whole = false;
		}
		if (!(flags & VRING_DESC_F_NEXT))
			return used;
	}
}

void queue_give(struct queue *queue, uint16_t head, uint64_t written)
{
	struct vring_used_elem *place = &queue->used->ring[queue->given & (queue->size - 1)];
	__atomic_store_n(&place->id, head, __ATOMIC_RELAXED);
	__atomic_store_n(&place->len, (uint32_t)written, __ATOMIC_RELAXED);
	queue->given++;
	queue->taken++;
}

void queue_publish(struct queue *queue)
{
	uint16_t before = queue->published;

	if (queue->given == before)
		return;
	queue->published = queue->given;
	__atomic_store_n(&queue->used->idx, queue->given, __ATOMIC_RELEASE);
	/* As in `queue_ask`, the other way round. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (vring_need_event(ONCE(queue->available->ring[queue->size]), queue->given, before))
		vhost_call((unsigned)(queue - queues));
}
