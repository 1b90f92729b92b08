/* encamp-shares --channel FD [--window FD] [--no-setgid] [--overlap] (--share DIR | --share-readonly DIR)...
 *
 * Shows directories of the host to one machine. Its guest program passes the messages on that its
 * kernel has for a FUSE file system (see wire.h); they are answered here with the system calls that
 * they stand for. It runs as the account that the machine's process runs as, and ends with it.
 *
 * The guest may be anybody: what it says is looked at before it is done, what it names is held by
 * descriptors, and the launcher has confined us to the shares before.
 */
#define _GNU_SOURCE
#include "server.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

void fail(const char *what, const char *about)
{
	if (errno)
		fprintf(stderr, "encamp-shares: %s %s: %s\n", what, about, strerror(errno));
	else
		fprintf(stderr, "encamp-shares: %s %s\n", what, about);
	exit(1);
}

static int descriptor(const char *word)
{
	char *end;
	long value = strtol(word, &end, 10);
	errno = 0;
	if (*end || end == word || value < 0 || value > 1 << 20)
		fail("is given no descriptor:", word);
	return (int)value;
}

/* As many descriptors as there may be: each file that the guest knows takes one. */
static unsigned raise_limit(void)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		fail("cannot read", "the limit of open files");
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
		fail("cannot raise", "the limit of open files");
	return limit.rlim_cur < 1 << 20 ? (unsigned)limit.rlim_cur : 1 << 20;
}

#define RULE(code, value, yes, no) BPF_JUMP(BPF_JMP | code | BPF_K, value, yes, no)
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define REFUSE(error) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error))
#define NEVER(call) RULE(BPF_JEQ, SYS_##call, 0, 1), REFUSE(EPERM)

/* Whoever has taken this process over is to start no programs, which the launcher could not refuse before
 * it had started ours. Of other architectures' calls the launcher's own filters allow none. */
static void refuse_programs(void)
{
	struct sock_filter rules[] = {
		LOAD(nr),
		NEVER(execve),
		NEVER(execveat),
		NEVER(unshare),
		NEVER(setns),
		NEVER(chroot),
#ifdef SYS_fork
		NEVER(fork),
		NEVER(vfork),
#endif
		/* Threads are made by clone, which a C library tries when there is no clone3. */
		RULE(BPF_JEQ, SYS_clone3, 0, 1), REFUSE(ENOSYS),
		RULE(BPF_JEQ, SYS_clone, 0, 3), LOAD(args[0]),
		RULE(BPF_JSET, CLONE_THREAD, 1, 0), REFUSE(EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof rules / sizeof *rules, rules };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
		fail("cannot refuse", "programs");
}

static _Noreturn void serve(int channel, int watched, int locked)
{
	struct pollfd ready[] = { { channel, POLLIN, 0 }, { watched, POLLIN, 0 }, { locked, POLLIN, 0 } };
	struct request request;

	for (;;) {
		channel_flush();
		if (poll(ready, 3, locks_deadline()) < 0 && errno != EINTR)
			fail("cannot wait for", "messages");
		watch_drain();
		locks_settle();
		if (!ready[0].revents)
			continue;
		channel_read();
		while (channel_next(&request))
			operate(&request);
	}
}

int main(int argc, char **argv)
{
	int channel = -1, window = -1;

	for (int i = 1; i < argc; i++) {
		const char *option = argv[i];
		bool more = i + 1 < argc;
		if (!strcmp(option, "--channel") && more) {
			channel = descriptor(argv[++i]);
		} else if (!strcmp(option, "--window") && more) {
			window = descriptor(argv[++i]);
		} else if (!strcmp(option, "--no-setgid")) {
			refused_modes |= S_ISGID;
		} else if (!strcmp(option, "--overlap")) {
			shares_overlap = true;
		} else if (!strncmp(option, "--share", 7) && more && share_count < SHARES_MOST) {
			shares[share_count].readonly = !strcmp(option, "--share-readonly");
			shares[share_count++].source = argv[++i];
		} else {
			errno = 0;
			fail("does not understand", option);
		}
	}
	errno = 0;
	if (channel < 0 || share_count == 0)
		fail("needs", "--channel and --share");
	signal(SIGPIPE, SIG_IGN);
	prctl(PR_SET_NAME, "encamp-shares");
	umask(0); /* The guest's kernel has taken its programs' own off. */
	refuse_programs();
	unsigned descriptors = raise_limit();
	channel_open(channel, window);
	int watched = watch_open();
	nodes_open(descriptors);
	serve(channel, watched, locks_open());
}
