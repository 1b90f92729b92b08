/* Which files the process may open, for good: Landlock, which needs no rights and holds for every
 * thread. It also keeps the process from looking into those outside: their memory, their variables,
 * their descriptors; and, from its version 6 on, from signalling them.
 */
#define _GNU_SOURCE
#include "launch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Debian 12's <linux/landlock.h> knows the second version only; numbers are the kernel's. */
struct ruleset {
	uint64_t files, network, scopes;
};
struct rule {
	uint64_t allowed;
	int32_t beneath;
} __attribute__((packed));
#define ASK_VERSION 1
#define RULE_BENEATH 1
#define SCOPES 3 /* abstract sockets and signals */

#define WRITE_FILE  (1 << 1)
#define READ_FILE   (1 << 2)
#define READ_DIR    (1 << 3)
#define REMOVE      (1 << 4 | 1 << 5)
#define MAKE_DEVICE (1 << 6 | 1 << 11)
#define MAKE_DIR    (1 << 7)
#define MAKE_FILE   (1 << 8)
#define MAKE_SOCKET (1 << 9)
#define MAKE_FIFO   (1 << 10)
#define MAKE_LINK   (1 << 12)
#define REFER       (1 << 13) /* from version 2: move and link between directories */
#define TRUNCATE    (1 << 14) /* from version 3 */
#define IOCTL       (1 << 15) /* from version 5: of devices */

#define OF_FILES (READ_FILE | WRITE_FILE | TRUNCATE)

static const uint64_t rights[] = {
	[READABLE] = READ_FILE | READ_DIR,
	[WRITABLE] = READ_FILE | READ_DIR | WRITE_FILE | TRUNCATE | REMOVE | REFER
	             | MAKE_DIR | MAKE_FILE | MAKE_SOCKET | MAKE_FIFO | MAKE_LINK,
	[WORKPLACE] = READ_FILE | READ_DIR | WRITE_FILE | TRUNCATE | MAKE_FILE,
	[DEVICE] = READ_FILE | WRITE_FILE | IOCTL,
};

static void allow(int rules, int fd, uint64_t allowed, const char *about)
{
	struct rule rule = { .allowed = allowed, .beneath = fd };
	/* EBADFD: it is in memory, where Landlock forbids nothing. */
	if (allowed && syscall(SYS_landlock_add_rule, rules, RULE_BENEATH, &rule, 0) < 0 && errno != EBADFD)
		fail("cannot allow", about);
}

static void allow_place(int rules, uint64_t handled, const struct place *place)
{
	struct stat found;
	int fd = open(place->path, O_PATH | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT && place->kind == READABLE)
		return;
	if (fd < 0 || fstat(fd, &found) < 0)
		fail("cannot open", place->path);
	uint64_t allowed = rights[place->kind] & handled;
	if (!S_ISDIR(found.st_mode))
		allowed &= OF_FILES | IOCTL;
	allow(rules, fd, allowed, place->path);
	close(fd);
}

/* QEMU is told of inherited files as /proc/self/fd/N, which opens them once more. A program that is
 * inherited is read to be run. */
static void allow_inherited(int rules, uint64_t handled)
{
	DIR *list = opendir("/proc/self/fd");
	if (!list)
		fail("cannot list", "open files");
	for (struct dirent *entry; (entry = readdir(list));) {
		int fd = atoi(entry->d_name);
		struct stat found;
		if (fd <= STDERR_FILENO || fd == rules || fstat(fd, &found) < 0 || !S_ISREG(found.st_mode))
			continue;
		bool writable = (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY;
		allow(rules, fd, (writable ? OF_FILES : READ_FILE) & handled, "an inherited file");
	}
	closedir(list);
}

void confine_files(const struct place *places, int count)
{
	int version = syscall(SYS_landlock_create_ruleset, NULL, 0, ASK_VERSION);
	/* With the first version nothing could be moved between the directories of a share. */
	if (version < 2)
		return;
	uint64_t handled = rights[WRITABLE] | MAKE_DEVICE | IOCTL;
	if (version < 3)
		handled &= ~TRUNCATE;
	if (version < 5)
		handled &= ~IOCTL;
	struct ruleset set = { .files = handled, .scopes = version < 6 ? 0 : SCOPES };
	int rules = syscall(SYS_landlock_create_ruleset, &set, sizeof set, 0);
	if (rules < 0)
		fail("cannot make", "rules for Landlock");
	for (int i = 0; i < count; i++)
		allow_place(rules, handled, &places[i]);
	allow_inherited(rules, handled);
	if (syscall(SYS_landlock_restrict_self, rules, 0) < 0)
		fail("cannot confine the process with", "Landlock");
	close(rules);
}
