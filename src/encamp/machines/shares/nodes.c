/* Files and directories that the guest knows. Each is held by a descriptor, so a node means the same
 * file whatever becomes of its name, and the kernel gives its inode number to no other meanwhile. No
 * path is ever looked up: a name is looked up in a directory that is held, a link is not followed.
 */
#define _GNU_SOURCE
#include "server.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define OF(member, entry) ((struct node *)((char *)(entry) - offsetof(struct node, member)))
#define SPARE 256          /* descriptors for all else: handles, locks */
#define EVICTED_AT_ONCE 3
#define PAUSE 2000         /* microseconds */
#define CROWDED_AGAIN 1    /* seconds */

struct table {
	struct link **slots;
	size_t size, count;    /* a power of two */
};

static struct table ids, inodes, names, places;
static struct node ages = { .older = &ages, .newer = &ages };
static uint64_t last_id;
static unsigned count, most;

struct share shares[SHARES_MOST];
unsigned share_count;
bool shares_overlap;

static uint64_t mix(uint64_t value)
{
	value *= 0x9e3779b97f4a7c15u;
	return value ^ value >> 29;
}

static uint64_t mix_bytes(uint64_t seed, const void *bytes, size_t size)
{
	const uint8_t *at = bytes;
	for (uint64_t hash = mix(seed + 1);; hash = mix(hash ^ *at++))
		if (size-- == 0)
			return hash;
}

static void *must(void *memory)
{
	if (!memory)
		fail("has no", "memory");
	return memory;
}

static void put(struct table *table, struct link *entry, uint64_t hash)
{
	if (table->count >= table->size) {
		struct table larger = { .size = table->size ? table->size * 2 : 256 };
		larger.slots = must(calloc(larger.size, sizeof *larger.slots));
		for (size_t i = 0; i < table->size; i++)
			for (struct link *each = table->slots[i], *next; each; each = next) {
				next = each->next;
				put(&larger, each, each->hash);
			}
		free(table->slots);
		*table = larger;
	}
	entry->hash = hash;
	entry->next = table->slots[hash & (table->size - 1)];
	table->slots[hash & (table->size - 1)] = entry;
	table->count++;
}

static struct link *first(const struct table *table, uint64_t hash)
{
	struct link *entry = table->size ? table->slots[hash & (table->size - 1)] : NULL;
	while (entry && entry->hash != hash)
		entry = entry->next;
	return entry;
}

static struct link *following(const struct link *entry)
{
	struct link *next = entry->next;
	while (next && next->hash != entry->hash)
		next = next->next;
	return next;
}

static void take_out(struct table *table, struct link *entry)
{
	struct link **at = &table->slots[entry->hash & (table->size - 1)];
	while (*at != entry)
		at = &(*at)->next;
	*at = entry->next;
	table->count--;
}

static uint64_t hash_of_name(uint64_t parent, const char *name)
{
	return mix_bytes(parent, name, strlen(name));
}

static uint64_t hash_of_inode(dev_t device, ino_t number)
{
	return mix(mix(device) ^ number);
}

struct node *node_find(uint64_t id)
{
	for (struct link *each = first(&ids, mix(id)); each; each = following(each))
		if (OF(by_id, each)->id == id)
			return OF(by_id, each);
	return NULL;
}

struct node *node_named(const struct node *parent, const char *name)
{
	for (struct link *each = first(&names, hash_of_name(parent->id, name)); each;
	     each = following(each)) {
		struct node *node = OF(by_name, each);
		if (node->parent == parent->id && strcmp(node->name, name) == 0)
			return node;
	}
	return NULL;
}

struct node *node_at(const void *place, size_t size, const struct node *after)
{
	struct link *each = after ? following(&after->by_place) : first(&places, mix_bytes(0, place, size));
	for (; each; each = following(each)) {
		struct node *node = OF(by_place, each);
		if (node->place->size == size && memcmp(node->place->bytes, place, size) == 0)
			return node;
	}
	return NULL;
}

/* A file is one node, by whatever share it is met: so the guest keeps its content once. A directory is one
 * in each share, since the guest's kernel lets a directory have one name only. */
static struct node *node_of_inode(struct share *share, const struct stat *found)
{
	for (struct link *each = first(&inodes, hash_of_inode(found->st_dev, found->st_ino)); each;
	     each = following(each)) {
		struct node *node = OF(by_inode, each);
		if (node->device != found->st_dev || node->number != found->st_ino)
			continue;
		if (node->share == share)
			return node;
		if (S_ISDIR(node->type))
			continue;
		/* By one of its names it may be written to. */
		if (node->share->readonly)
			node->share = share;
		return node;
	}
	return NULL;
}

void node_lose_name(struct node *node, bool by_another)
{
	node->lost = by_another;
	if (!node->name)
		return;
	take_out(&names, &node->by_name);
	free(node->name);
	node->name = NULL;
}

void node_rename(struct node *node, const struct node *parent, const char *name)
{
	if (node->name && node->parent == parent->id && strcmp(node->name, name) == 0)
		return;
	node_lose_name(node, false);
	node->parent = parent->id;
	node->name = must(strdup(name));
	put(&names, &node->by_name, hash_of_name(parent->id, name));
}

static void make_newest(struct node *node)
{
	node->older = ages.older;
	node->newer = &ages;
	node->older->newer = node->newer->older = node;
}

static void out_of_age(struct node *node)
{
	node->older->newer = node->newer;
	node->newer->older = node->older;
}

static struct node *make(struct share *share, int fd, const struct stat *found)
{
	struct node *node = must(calloc(1, sizeof *node));
	*node = (struct node){
		.id = ++last_id,
		.fd = fd,
		.device = found->st_dev,
		.number = found->st_ino,
		.type = found->st_mode & S_IFMT,
		.share = share,
		.size = -1,
		.claim = -1,
		.private = -1,
	};
	put(&ids, &node->by_id, mix(node->id));
	put(&inodes, &node->by_inode, hash_of_inode(node->device, node->number));
	make_newest(node);
	count++;
	if (S_ISDIR(node->type)) {
		watch(node);
		if (node->place)
			put(&places, &node->by_place, mix_bytes(0, node->place->bytes, node->place->size));
	}
	return node;
}

static void end(struct node *node)
{
	node_lose_name(node, false);
	take_out(&ids, &node->by_id);
	take_out(&inodes, &node->by_inode);
	if (node->place) {
		take_out(&places, &node->by_place);
		watch_end(node);
	}
	out_of_age(node);
	close(node->fd);
	count--;
	free(node);
}

/* Each node takes a descriptor. When they become few, the guest's kernel is asked to forget the files
 * that it has known for longest; it does so unless they are in use. */
static void make_room(void)
{
	struct node *node = ages.newer;
	for (int i = 0; i < EVICTED_AT_ONCE && node != &ages; i++) {
		struct node *next = node->newer;
		if (node->name && !S_ISDIR(node->type) && node->uses == 0)
			take_back_name(node->parent, node->name);
		out_of_age(node);
		make_newest(node);
		node = next;
	}
}

/* Directories are not asked back one by one: what is mounted in one would go with its name. */
static void tell_crowded(void)
{
	static time_t last;
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	if (last != 0 && now.tv_sec - last < CROWDED_AGAIN)
		return;
	last = now.tv_sec;
	tell(WIRE_CROWDED);
}

bool nodes_are_many(void)
{
	return count >= most / 2;
}

static struct node *meet(struct node *parent, const char *name, int fd, struct stat *found)
{
	if (fstat(fd, found) < 0) {
		int error = errno;
		close(fd);
		errno = error;
		return NULL;
	}
	struct node *node = node_of_inode(parent->share, found);
	if (node) {
		close(fd);
	} else {
		if (nodes_are_many())
			make_room();
		/* It forgets a moment later, and must not be outrun. */
		if (count >= most - most / 4) {
			tell_crowded();
			channel_flush();
			usleep(PAUSE);
		}
		node = make(parent->share, fd, found);
		/* What others changed before it was watched is told by nobody. */
		if (node->place)
			fstat(node->fd, found);
	}
	node_rename(node, parent, name);
	node->lookups++;
	return node;
}

struct node *node_meet(struct node *parent, const char *name, struct stat *found)
{
	int fd = openat(parent->fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? NULL : meet(parent, name, fd, found);
}

struct node *node_meet_open(struct node *parent, const char *name, int fd, struct stat *found)
{
	char path[32];
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	int held = open(path, O_PATH | O_CLOEXEC);
	return held < 0 ? NULL : meet(parent, name, held, found);
}

static void end_if_unknown(struct node *node)
{
	if (node->lookups == 0 && node->uses == 0 && node != node->share->node)
		end(node);
}

void node_forget(struct node *node, uint64_t times)
{
	node->lookups -= times < node->lookups ? times : node->lookups;
	end_if_unknown(node);
}

void node_use(struct node *node)
{
	node->uses++;
}

void node_leave(struct node *node)
{
	node->uses--;
	if (node->uses == 0)
		lock_unclaim(node);
	end_if_unknown(node);
}

void nodes_each(void (*visit)(struct node *))
{
	for (struct node *node = ages.newer, *next; node != &ages; node = next) {
		next = node->newer;
		visit(node);
	}
}

static void forget_wholly(struct node *node)
{
	node->lookups = 0;
	end_if_unknown(node);
}

void nodes_clear(void)
{
	nodes_each(forget_wholly);
}

const char *node_path(const struct node *node)
{
	static char path[32];
	snprintf(path, sizeof path, "/proc/self/fd/%d", node->fd);
	return path;
}

int node_open(const struct node *node, int flags)
{
	/* What a fifo or a device would do when it is opened is not for the guest to try. */
	if (!S_ISREG(node->type) && !S_ISDIR(node->type)) {
		errno = ENXIO;
		return -1;
	}
	return open(node_path(node), flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
}

void nodes_open(unsigned descriptors)
{
	struct stat found;

	most = descriptors > 2 * SPARE ? descriptors - SPARE : descriptors / 2;
	last_id = FUSE_ROOT_ID;
	for (unsigned i = 0; i < share_count; i++) {
		int fd = open(shares[i].source, O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (fd < 0 || fstat(fd, &found) < 0)
			fail("cannot share", shares[i].source);
		shares[i].local = is_local(fd);
		shares[i].node = make(&shares[i], fd, &found);
	}
}
