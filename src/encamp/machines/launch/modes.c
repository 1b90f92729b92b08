/* No setuid files on shares. What a machine writes to a share belongs to the share's owner, so a
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
#include <sys/stat.h>
#include <sys/syscall.h>

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
	struct sock_fprog program = { sizeof rules / sizeof *rules, rules };
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
		fail("cannot refuse", "setuid files");
}
