/* Which system calls the process may not make, beside those that QEMU or the share server gives up
 * by itself.
 *
 * No setuid files on shares. What a machine writes to a share belongs to the share's owner, so a
 * setuid bit in it would lend the owner's rights, on the host, to whoever runs a program of the
 * machine's making. `nosuid` cannot help: it holds for one mount, the file is seen by all.
 *
 * Setgid bits are refused to root's machines only; for others they are how directories are shared
 * within a group, which a job may well set up.
 */
#define _GNU_SOURCE
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __x86_64__
#define ARCHITECTURE AUDIT_ARCH_X86_64
#define NUMBERS_END 0x40000000 /* above: the same calls once more, for 32-bit pointers */
#else
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#define NUMBERS_END 0x7fffffff
#endif
#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif
#ifndef SYS_setxattrat
#define SYS_setxattrat 463
#endif
#define SET_OWNER_OF_SOCKET 0x8901 /* FIOSETOWN, and the same once more: */
#define SET_GROUP_OF_SOCKET 0x8902 /* SIOCSPGRP */

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, value)
#define REFUSE(error) RETURN(SECCOMP_RET_ERRNO | (error))
#define ALLOW RETURN(SECCOMP_RET_ALLOW)
#define UNLESS(kind, value, skip) BPF_JUMP(BPF_JMP | kind | BPF_K, value, 0, skip)

/* Each rule is jumped over by other calls, and ends the matter for its own. */
#define NEVER(call, error) UNLESS(BPF_JEQ, SYS_##call, 1), REFUSE(error)
#define NOT_WITH(call, mode) \
	UNLESS(BPF_JEQ, SYS_##call, 4), LOAD(args[mode]), \
	UNLESS(BPF_JSET, bits, 1), REFUSE(EPERM), ALLOW
#define NOT_MADE_WITH(call, flags, mode) \
	UNLESS(BPF_JEQ, SYS_##call, 6), LOAD(args[flags]), \
	UNLESS(BPF_JSET, O_CREAT | (O_TMPFILE & ~O_DIRECTORY), 3), LOAD(args[mode]), \
	UNLESS(BPF_JSET, bits, 1), REFUSE(EPERM), ALLOW
#define ONLY_ITSELF(call, own) \
	UNLESS(BPF_JEQ, SYS_##call, 4), LOAD(args[0]), \
	UNLESS(BPF_JEQ, own, 1), ALLOW, REFUSE(EPERM)
#define NOT_TO(call, argument, first, second) \
	UNLESS(BPF_JEQ, SYS_##call, 5), LOAD(args[argument]), \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, first, 1, 0), \
	UNLESS(BPF_JEQ, second, 1), REFUSE(EPERM), ALLOW
#define NOT_EMPTIED_UNWRITTEN(call, flags) \
	UNLESS(BPF_JEQ, SYS_##call, 7), LOAD(args[flags]), \
	UNLESS(BPF_JSET, O_TRUNC, 4), BPF_STMT(BPF_ALU | BPF_AND | BPF_K, O_ACCMODE), \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, O_WRONLY, 2, 0), \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, O_RDWR, 1, 0), \
	REFUSE(EACCES), ALLOW

static void install(struct sock_filter *rules, size_t size, const char *what)
{
	struct sock_fprog program = { size / sizeof *rules, rules };
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
		fail("cannot refuse", what);
}

/* The filters below do not ask for the architecture: `refuse_modes` is always there, too, and of
 * several filters the strictest counts.
 *
 * Machines of one account share its uid, which is all that the kernel asks for by itself. Before
 * its version 6, Landlock knows nothing of signals; no version knows of limits and of keys. */
static void refuse_signals(void)
{
	pid_t own = getpid(); /* It stays so when the program takes our place. */
	struct sock_filter rules[] = {
		LOAD(nr),
		ONLY_ITSELF(kill, own),
		ONLY_ITSELF(tgkill, own),
		ONLY_ITSELF(rt_sigqueueinfo, own),
		ONLY_ITSELF(rt_tgsigqueueinfo, own),
		NEVER(tkill, EPERM),
		NEVER(pidfd_send_signal, EPERM),
		NEVER(ptrace, EPERM),
		NEVER(process_vm_readv, EPERM),
		NEVER(process_vm_writev, EPERM),
		NEVER(pidfd_getfd, EPERM),
		/* The ways to have the kernel send one. */
		NOT_TO(fcntl, 1, F_SETOWN, F_SETOWN_EX),
		NOT_TO(ioctl, 1, SET_OWNER_OF_SOCKET, SET_GROUP_OF_SOCKET),
		ALLOW,
	};
	install(rules, sizeof rules, "access to other processes");
}

void refuse_neighbours(bool traces)
{
	pid_t own = getpid();
	if (!traces)
		refuse_signals();
	struct sock_filter rules[] = {
		LOAD(nr),
		UNLESS(BPF_JEQ, SYS_prlimit64, 5), LOAD(args[0]),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0),
		UNLESS(BPF_JEQ, own, 1), ALLOW, REFUSE(EPERM),
		/* What decides how much of a processor or of a disk another one gets. */
		NEVER(setpriority, EPERM),
		NEVER(sched_setscheduler, EPERM),
		NEVER(sched_setparam, EPERM),
		NEVER(sched_setattr, EPERM),
		NEVER(sched_setaffinity, EPERM),
		NEVER(ioprio_set, EPERM),
		NEVER(shmget, EPERM),
		NEVER(shmat, EPERM),
		NEVER(semget, EPERM),
		NEVER(msgget, EPERM),
		NEVER(mq_open, EPERM),
		NEVER(mq_unlink, EPERM),
		NEVER(add_key, EPERM),
		NEVER(request_key, EPERM),
		NEVER(keyctl, EPERM),
		/* Landlock lets whoever may read a directory be told of all that is done in it. */
#ifdef __x86_64__
		NEVER(inotify_init, EPERM),
#endif
		NEVER(inotify_init1, EPERM),
		/* Before its version 3, Landlock lets a file be emptied that may not be written to. */
		NEVER(truncate, EACCES),
#ifdef __x86_64__
		NOT_EMPTIED_UNWRITTEN(open, 1),
#endif
		NOT_EMPTIED_UNWRITTEN(openat, 2),
		ALLOW,
	};
	install(rules, sizeof rules, "access to other processes");
}

void refuse_watching(void)
{
	struct sock_filter rules[] = {
		LOAD(nr),
		NEVER(fanotify_init, EPERM),
		ALLOW,
	};
	install(rules, sizeof rules, "news of directories");
}

/* What a file system says of a file is not Landlock's business. Without a share to write to,
 * neither is it the process's: never QEMU's. */
void refuse_attributes(void)
{
	struct sock_filter rules[] = {
		LOAD(nr),
#ifdef __x86_64__
		NEVER(chmod, EPERM),
		NEVER(chown, EPERM),
		NEVER(lchown, EPERM),
		NEVER(utime, EPERM),
		NEVER(utimes, EPERM),
		NEVER(futimesat, EPERM),
#endif
		NEVER(utimensat, EPERM),
		NEVER(fchmod, EPERM),
		NEVER(fchmodat, EPERM),
		NEVER(fchmodat2, EPERM),
		NEVER(fchown, EPERM),
		NEVER(fchownat, EPERM),
		NEVER(setxattr, EPERM),
		NEVER(lsetxattr, EPERM),
		NEVER(fsetxattr, EPERM),
		NEVER(setxattrat, EPERM),
		NEVER(removexattr, EPERM),
		NEVER(lremovexattr, EPERM),
		NEVER(fremovexattr, EPERM),
		ALLOW,
	};
	install(rules, sizeof rules, "changes of files' modes");
}

void refuse_sockets(bool internet_too)
{
	struct sock_filter others[] = {
		LOAD(nr),
		UNLESS(BPF_JEQ, SYS_socket, 4), LOAD(args[0]),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET6, 1, 0),
		REFUSE(EACCES),
		NEVER(socketpair, EACCES),
		ALLOW,
	};
	struct sock_filter all[] = { LOAD(nr), NEVER(socket, EACCES), NEVER(socketpair, EACCES), ALLOW };
	if (internet_too)
		install(all, sizeof all, "sockets");
	else
		install(others, sizeof others, "sockets");
}

void refuse_modes(bool setgid_too)
{
	unsigned bits = S_ISUID | (setgid_too ? S_ISGID : 0);
	struct sock_filter rules[] = {
		LOAD(arch),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0),
		REFUSE(ENOSYS),
		LOAD(nr),
		BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, NUMBERS_END, 0, 1),
		REFUSE(ENOSYS),
#ifdef __x86_64__
		NOT_WITH(chmod, 1),
		NOT_WITH(mkdir, 1),
		NOT_WITH(mknod, 1),
		NOT_WITH(creat, 1),
		NOT_MADE_WITH(open, 1, 2),
#endif
		NOT_WITH(fchmod, 1),
		NOT_WITH(fchmodat, 2),
		NOT_WITH(fchmodat2, 2),
		NOT_WITH(mkdirat, 2),
		NOT_WITH(mknodat, 2),
		NOT_MADE_WITH(openat, 2, 3),
		/* Their modes are out of a filter's sight. */
		NEVER(openat2, ENOSYS),
		NEVER(io_uring_setup, ENOSYS),
		ALLOW,
	};
	install(rules, sizeof rules, "setuid files");
}
