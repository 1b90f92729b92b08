/* Locks of the guest's programs are locks of the host's, so all see them: programs of the host, other
 * machines, and other hosts where the file system tells them.
 *
 * flock() is taken on the descriptor that the file was opened with. Locks of ranges belong to an owner
 * (a process, or an open file for OFD locks), and each owner of a file gets a descriptor of its own:
 * the host's OFD locks. They end when it is closed, and so with us, with the machine, with its host.
 *
 * Before a lock is granted the guest is to forget what it keeps of the file's content: the one who
 * held it may have written.
 */
#define _GNU_SOURCE
#include "server.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOCKS_MOST 10000
#define WAITERS_MOST 128
#define STACK 65536
/* A signal that comes before the thread waits is lost: it is sent again after so many milliseconds. */
#define AGAIN 10
#define SIGNAL SIGUSR2

struct lock {
	struct lock *next;
	struct node *node;
	uint64_t owner;
	uint32_t serial;       /* of the handle that it came through */
	int fd;
};

struct waiter {
	struct waiter *next;
	pthread_t thread;
	uint64_t unique;
	struct node *node;
	struct flock range;
	int whole;             /* for flock(); 0: a range */
	int fd;                /* our own; of the same open file as the lock's */
	struct lock *lock;     /* NULL: it was dropped meanwhile, or there is none */
	int error;
	_Atomic pid_t number;  /* the thread's; 0: it has not begun */
	bool interrupted, forgotten;
};

static struct lock *locks;
static struct waiter *waiters;
static unsigned lock_count, waiter_count;
static int ended[2];

static void nothing(int signal)
{
	(void)signal;
}

int locks_open(void)
{
	struct sigaction quiet = { .sa_handler = nothing };
	sigset_t set;
	sigaction(SIGNAL, &quiet, NULL);
	sigemptyset(&set);
	sigaddset(&set, SIGNAL);
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
	if (pipe2(ended, O_CLOEXEC | O_NONBLOCK) < 0)
		fail("cannot make", "a pipe");
	return ended[0];
}

static void drop(struct lock **at)
{
	struct lock *lock = *at;
	for (struct waiter *each = waiters; each; each = each->next)
		if (each->lock == lock)
			each->lock = NULL;
	*at = lock->next;
	close(lock->fd);
	node_leave(lock->node);
	free(lock);
	lock_count--;
}

void locks_drop_owner(struct node *node, uint64_t owner)
{
	for (struct lock **at = &locks; *at;)
		if ((*at)->node == node && (*at)->owner == owner)
			drop(at);
		else
			at = &(*at)->next;
}

void locks_drop_handle(const struct handle *handle)
{
	for (struct lock **at = &locks; *at;)
		if ((*at)->serial == handle->serial)
			drop(at);
		else
			at = &(*at)->next;
}

void locks_clear(void)
{
	while (locks)
		drop(&locks);
	for (struct waiter *each = waiters; each; each = each->next)
		each->interrupted = each->forgotten = true;
}

static struct lock *lock_of(struct node *node, uint64_t owner)
{
	for (struct lock *each = locks; each; each = each->next)
		if (each->node == node && each->owner == owner)
			return each;
	return NULL;
}

/* What the file's mode allows may have changed since it was opened; then its handle has to do. */
static int descriptor_for(struct node *node, const struct handle *handle)
{
	char path[32];
	snprintf(path, sizeof path, "/proc/self/fd/%d", node->private);
	if (node->private >= 0)
		return open(path, O_RDWR | O_CLOEXEC);
	int flags = fcntl(handle->fd, F_GETFL) & O_ACCMODE;
	int fd = node_open(node, flags);
	return fd >= 0 ? fd : fcntl(handle->fd, F_DUPFD_CLOEXEC, 0);
}

static struct lock *lock_made(struct node *node, uint64_t owner, const struct handle *handle)
{
	struct lock *lock = lock_of(node, owner);
	if (lock)
		return lock;
	lock = lock_count < LOCKS_MOST ? calloc(1, sizeof *lock) : NULL;
	int fd = lock ? descriptor_for(node, handle) : -1;
	if (fd < 0) {
		free(lock);
		return NULL;
	}
	*lock = (struct lock){ .next = locks, .node = node, .owner = owner, .serial = handle->serial, .fd = fd };
	locks = lock;
	lock_count++;
	node_use(node);
	return lock;
}

static bool range_of(const struct fuse_file_lock *asked, struct flock *range)
{
	if (asked->start > INT64_MAX || asked->end > INT64_MAX || asked->end < asked->start)
		return false;
	*range = (struct flock){
		.l_type = (short)asked->type,
		.l_whence = SEEK_SET,
		.l_start = (off_t)asked->start,
		.l_len = asked->end == INT64_MAX ? 0 : (off_t)(asked->end - asked->start + 1),
	};
	return asked->type == F_RDLCK || asked->type == F_WRLCK || asked->type == F_UNLCK;
}

void do_getlk(const struct request *request, struct node *node)
{
	struct fuse_lk_in in;
	struct fuse_lk_out out = { 0 };
	struct flock range;
	memcpy(&in, request->body, sizeof in);
	const struct handle *handle = handle_find(node, in.fh);
	const struct lock *lock = lock_of(node, in.owner);
	int error = !handle ? EBADF : !range_of(&in.lk, &range) ? EINVAL : 0;
	int fd = error ? -1 : lock ? lock->fd : descriptor_for(node, handle);
	if (!error && (fd < 0 || fcntl(fd, F_OFD_GETLK, &range) < 0))
		error = errno;
	if (!lock && fd >= 0)
		close(fd);
	if (!error) {
		out.lk = (struct fuse_file_lock){
			.start = (uint64_t)range.l_start,
			.end = range.l_len == 0 ? INT64_MAX : (uint64_t)(range.l_start + range.l_len - 1),
			.type = (uint32_t)range.l_type,
		};
	}
	answer(request, error, &out, sizeof out);
}

/* ── files by which programs share memory ────────────────────────────────────────────────────── */

static struct node *claimed;

static void forget_neighbour(struct node *node)
{
	if (node->parent == claimed->parent && node->share == claimed->share)
		take_back(node->id, CONTENT);
}

/* As long as such a file is open in a machine, the whole of it is locked on the host: others are told
 * that it is in use, by their own locks. The locks of the machine's programs are then on a file of our
 * own. Else they would meet ours. */
bool lock_claim(struct node *node)
{
	struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	if (node->claim >= 0)
		return true;
	int fd = node->share->readonly ? -1 : node_open(node, O_RDWR);
	int private = fd < 0 || fcntl(fd, F_OFD_SETLK, &whole) < 0 ? -1 : memfd_create("encamp-locks", MFD_CLOEXEC);
	if (private < 0) {
		close(fd);
		return false;
	}
	node->claim = fd;
	node->private = private;
	/* What belongs to it may have been changed by those who had it before. */
	claimed = node;
	nodes_each(forget_neighbour);
	return true;
}

void lock_unclaim(struct node *node)
{
	if (node->claim < 0)
		return;
	close(node->claim);
	close(node->private);
	node->claim = node->private = -1;
}

/* ── waiting ─────────────────────────────────────────────────────────────────────────────────── */

static void *wait_for(void *given)
{
	struct waiter *waiter = given;
	waiter->number = (pid_t)syscall(SYS_gettid);
	int done = waiter->whole ? flock(waiter->fd, waiter->whole) : fcntl(waiter->fd, F_OFD_SETLKW, &waiter->range);
	waiter->error = done < 0 ? errno : 0;
	while (write(ended[1], &waiter, sizeof waiter) < 0 && errno == EINTR)
		;
	return NULL;
}

static int begin_waiting(const struct request *request, struct node *node, int fd, struct lock *lock,
                         int whole, const struct flock *range)
{
	struct waiter *waiter = waiter_count < WAITERS_MOST ? calloc(1, sizeof *waiter) : NULL;
	pthread_attr_t small;
	if (!waiter)
		return ENOLCK;
	*waiter = (struct waiter){
		.unique = request->head->unique,
		.node = node,
		.whole = whole,
		.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0),
		.lock = lock,
	};
	if (range)
		waiter->range = *range;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, STACK);
	int error = waiter->fd < 0 ? ENOLCK : pthread_create(&waiter->thread, &small, wait_for, waiter) ? ENOLCK : 0;
	pthread_attr_destroy(&small);
	if (error) {
		close(waiter->fd);
		free(waiter);
		return error;
	}
	waiter->next = waiters;
	waiters = waiter;
	waiter_count++;
	node_use(node);
	return 0;
}

static void grant(uint64_t unique, struct node *node)
{
	watch_drain();
	node->stale = true;
	take_back(node->id, CONTENT);
	answer_queued(unique, 0);
}

static void end_waiting(struct waiter *waiter)
{
	struct waiter **at = &waiters;
	while (*at != waiter)
		at = &(*at)->next;
	*at = waiter->next;
	pthread_join(waiter->thread, NULL);
	close(waiter->fd);
	/* An owner that gave its locks up while it waited has none. */
	if (!waiter->error && !waiter->whole && !waiter->lock)
		waiter->error = EINTR;
	if (!waiter->forgotten && waiter->error)
		answer_queued(waiter->unique, waiter->error);
	else if (!waiter->forgotten)
		grant(waiter->unique, waiter->node);
	node_leave(waiter->node);
	free(waiter);
	waiter_count--;
}

void locks_settle(void)
{
	struct waiter *over[WAITERS_MOST];
	for (struct waiter *each = waiters; each; each = each->next)
		/* Not pthread_kill(): the launcher has left us no call but this one for it. */
		if (each->interrupted && each->number != 0)
			syscall(SYS_tgkill, getpid(), each->number, SIGNAL);
	if (waiter_count == 0)
		return;
	ssize_t size = read(ended[0], over, sizeof over);
	for (ssize_t i = 0; i < size / (ssize_t)sizeof *over; i++)
		end_waiting(over[i]);
}

int locks_deadline(void)
{
	for (struct waiter *each = waiters; each; each = each->next)
		if (each->interrupted)
			return AGAIN;
	return -1;
}

void do_interrupt(const struct request *request)
{
	struct fuse_interrupt_in in;
	memcpy(&in, request->body, sizeof in);
	for (struct waiter *each = waiters; each; each = each->next)
		if (each->unique == in.unique)
			each->interrupted = true;
	locks_settle();
}

/* ── asking ──────────────────────────────────────────────────────────────────────────────────── */

static int lock_whole(const struct request *request, struct node *node, const struct handle *handle,
                      uint32_t type, bool wait, bool *later)
{
	int kind = type == F_UNLCK ? LOCK_UN : type == F_WRLCK ? LOCK_EX : LOCK_SH;
	if (flock(handle->fd, kind | LOCK_NB) == 0)
		return 0;
	if (errno != EWOULDBLOCK || !wait)
		return errno;
	*later = true;
	return begin_waiting(request, node, handle->fd, NULL, kind, NULL);
}

static int lock_range(const struct request *request, struct node *node, const struct handle *handle,
                      const struct fuse_lk_in *in, bool wait, bool *later)
{
	struct flock range;
	if (!range_of(&in->lk, &range))
		return EINVAL;
	if (in->lk.type == F_UNLCK && !lock_of(node, in->owner))
		return 0;
	struct lock *lock = lock_made(node, in->owner, handle);
	if (!lock)
		return ENOLCK;
	if (fcntl(lock->fd, F_OFD_SETLK, &range) == 0)
		return 0;
	if ((errno != EAGAIN && errno != EACCES) || !wait)
		return errno;
	*later = true;
	return begin_waiting(request, node, lock->fd, lock, 0, &range);
}

static void lock(const struct request *request, struct node *node, bool wait)
{
	struct fuse_lk_in in;
	bool later = false;
	memcpy(&in, request->body, sizeof in);
	const struct handle *handle = handle_find(node, in.fh);
	int error = !handle ? EBADF
	            : in.lk_flags & FUSE_LK_FLOCK ? lock_whole(request, node, handle, in.lk.type, wait, &later)
	            : lock_range(request, node, handle, &in, wait, &later);
	if (!error && later)
		return;
	if (!error && in.lk.type != F_UNLCK)
		grant(request->head->unique, node);
	else
		answer(request, error, NULL, 0);
}

void do_setlk(const struct request *request, struct node *node)
{
	lock(request, node, false);
}

void do_setlkw(const struct request *request, struct node *node)
{
	lock(request, node, true);
}
