/* Changes to what the guest knows by others: the host's programs, other machines. The kernel tells of
 * them (fanotify, for which it asks no rights), and who made them, so the guest keeps names, attributes
 * and content for longer, and forgets at once what is not true any more.
 *
 * Where directories cannot be watched, and where another host may change files, nothing is kept for
 * longer than NFS would.
 */
#define _GNU_SOURCE
#include "server.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/vfs.h>
#include <unistd.h>

#define HANDLE_MOST 128
/* What fanotify calls a directory: its file system and its handle there. */
#define PLACE_SIZE(handle) (sizeof(fsid_t) + sizeof *(handle) + (handle)->handle_bytes)
#define NAMED (FAN_CREATE | FAN_DELETE | FAN_MOVED_FROM | FAN_MOVED_TO)
#define WATCHED (NAMED | FAN_MODIFY | FAN_ATTRIB | FAN_ONDIR | FAN_EVENT_ON_CHILD)

static int group = -1;

static bool is_known(const struct statfs *system)
{
	static const uint32_t kinds[] = {
		0xef53 /* ext */, 0x58465342 /* xfs */, 0x9123683e /* btrfs */, 0x01021994 /* tmpfs */,
		0x794c7630 /* overlay */, 0xf2f52010 /* f2fs */, 0x2fc12fc1 /* zfs */, 0xca451a4e /* bcachefs */,
	};
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if ((uint32_t)system->f_type == kinds[i])
			return true;
	return false;
}

bool is_local(int directory)
{
	struct statfs found;
	return fstatfs(directory, &found) == 0 && is_known(&found);
}

int watch_open(void)
{
	group = fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_DFID_NAME | FAN_CLOEXEC | FAN_NONBLOCK,
	                      O_RDONLY | O_CLOEXEC);
	return group;
}

void watch(struct node *directory)
{
	struct {
		fsid_t system;
		struct file_handle handle;
		uint8_t space[HANDLE_MOST];
	} place = { .handle.handle_bytes = HANDLE_MOST };
	struct statfs found;
	int mount;

	if (group < 0 || fstatfs(directory->fd, &found) < 0 || !is_known(&found) ||
	    name_to_handle_at(directory->fd, "", &place.handle, &mount, AT_EMPTY_PATH) < 0 ||
	    fanotify_mark(group, FAN_MARK_ADD | FAN_MARK_ONLYDIR, WATCHED, directory->fd, ".") < 0)
		return;
	place.system = found.f_fsid;
	size_t size = PLACE_SIZE(&place.handle);
	directory->place = malloc(sizeof *directory->place + size);
	if (!directory->place)
		return;
	directory->place->size = size;
	memcpy(directory->place->bytes, &place, size);
}

void watch_end(struct node *directory)
{
	if (!node_at(directory->place->bytes, directory->place->size, NULL))
		fanotify_mark(group, FAN_MARK_REMOVE, WATCHED, directory->fd, ".");
	free(directory->place);
	directory->place = NULL;
}

bool is_watched(uint64_t directory)
{
	struct node *node = node_find(directory);
	return node && node->place;
}

static void take_all_back(struct node *node)
{
	node->stale = true;
	take_back(node->id, CONTENT);
	if (node->name)
		take_back_name(node->parent, node->name);
}

static void changed(struct node *directory, uint64_t mask, const char *name)
{
	if (strcmp(name, ".") == 0 || *name == 0) {
		take_back(directory->id, ATTRIBUTES);
		return;
	}
	struct node *node = node_named(directory, name);
	if (node) {
		take_back(node->id, mask & FAN_MODIFY ? CONTENT : ATTRIBUTES);
		node->stale = true;
	}
	if (!(mask & NAMED))
		return;
	/* Also a name that was not there: that, too, is remembered. */
	take_back_name(directory->id, name);
	take_back(directory->id, ATTRIBUTES);
	if (node)
		node_lose_name(node, true);
}

static void happened(uint64_t mask, const struct fanotify_event_info_fid *info)
{
	const struct file_handle *handle = (const void *)info->handle;
	const char *name = (const char *)handle->f_handle + handle->handle_bytes;
	struct node *directory = NULL;

	while ((directory = node_at(&info->fsid, PLACE_SIZE(handle), directory)) != NULL)
		changed(directory, mask, info->hdr.info_type == FAN_EVENT_INFO_TYPE_DFID ? "" : name);
}

/* Events are not aligned as their structure would be: `begin` is where this one lies. */
static void look_at(const struct fanotify_event_metadata *event, const char *begin)
{
	if (event->mask & FAN_Q_OVERFLOW) {
		nodes_each(take_all_back);
		return;
	}
	if (event->pid == getpid())
		return;
	for (size_t at = event->metadata_len; at + sizeof(struct fanotify_event_info_fid) <= event->event_len;) {
		const struct fanotify_event_info_fid *info = (const void *)(begin + at);
		if (info->hdr.info_type == FAN_EVENT_INFO_TYPE_DFID_NAME ||
		    info->hdr.info_type == FAN_EVENT_INFO_TYPE_DFID)
			happened(event->mask, info);
		if (info->hdr.len == 0)
			return;
		at += info->hdr.len;
	}
}

void watch_drain(void)
{
	static char events[16384] __attribute__((aligned(8)));
	struct fanotify_event_metadata event;
	ssize_t size;

	while (group >= 0 && (size = read(group, events, sizeof events)) > 0)
		for (ssize_t at = 0; at + (ssize_t)sizeof event <= size; at += event.event_len) {
			memcpy(&event, events + at, sizeof event);
			look_at(&event, events + at);
		}
}
