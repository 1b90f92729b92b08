/* Giving up rights: another user, no capabilities, no way back. */
#define _GNU_SOURCE
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* One mapping line for each run of ids: 0 inside is `id` outside, the others are themselves. */
static void write_map(pid_t child, const char *kind, unsigned id)
{
	char path[64], map[128];
	snprintf(path, sizeof path, "/proc/%d/%s_map", (int)child, kind);
	int length = snprintf(map, sizeof map, "0 %u 1\n1 1 %u\n%u %u %u\n",
			      id, id - 1, id + 1, id + 1, 4294967294u - id);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, map, length) != length)
		fail("cannot write", path);
	close(fd);
}

int namespace_for(uid_t uid, gid_t gid)
{
	/* A namespace is named by a process in it: a child that only waits to be ended. */
	int ready[2];
	char byte;
	if (pipe2(ready, O_CLOEXEC) < 0)
		fail("cannot make", "a pipe");
	pid_t child = fork();
	if (child < 0)
		fail("cannot", "fork");
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (unshare(CLONE_NEWUSER) < 0)
			_exit(1);
		if (write(ready[1], "", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	close(ready[1]);
	if (read(ready[0], &byte, 1) != 1) {
		errno = 0;
		fail("this kernel does not allow", "user namespaces, which root's shares need");
	}
	close(ready[0]);
	write_map(child, "uid", uid);
	write_map(child, "gid", gid);
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/ns/user", (int)child);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		fail("cannot open", path);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	return fd;
}

/* An ordinary user may not drop from the bounding set, and has no need to. */
static void drop_bounds(void)
{
	for (int capability = 0; capability <= 63; capability++)
		prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
}

void become(uid_t uid, gid_t gid, gid_t group)
{
	drop_bounds();
	if (setgroups(group != 0, &group) < 0 || setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0)
		fail("cannot change to", "the machine's user");
}

void become_inside(int user_namespace, gid_t group)
{
	if (setns(user_namespace, CLONE_NEWUSER) < 0)
		fail("cannot enter", "the machine's user namespace");
	close(user_namespace);
	/* Inside, the machine's user is called 0; outside it is what --user said. */
	if (setgroups(group != 0, &group) < 0 || setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0)
		fail("cannot change to", "the machine's user");
}

void give_up_capabilities(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct none[2];
	memset(none, 0, sizeof none);
	drop_bounds();
	prctl(PR_SET_SECUREBITS, SECBIT_NOROOT | SECBIT_NOROOT_LOCKED);
	if (syscall(SYS_capset, &header, none) < 0)
		fail("cannot give up", "capabilities");
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		fail("cannot set", "no_new_privs");
}
