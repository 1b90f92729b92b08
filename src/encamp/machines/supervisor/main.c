/* encamp-supervisor --console FILE --monitor FD --port NAME=FD [--port NAME=FD ...] -- KERNEL ARG...
 *
 * Is a machine of user-mode Linux to the outside, as QEMU's process is one of its kind. It runs the
 * kernel as its child and is the device in which the guest finds its ports:
 *   --port NAME=FD   a port of this name in the machine. FD listens; one client at a time is at the
 *                    other end of the port, others wait until it has left
 *   --monitor FD     listens for those who say `status`, `pause` or `resume`
 *   --console FILE   what the kernel says is appended to it
 *   --loader FD, --library FD
 *                    of a kernel that needs another C library than the host's
 *   --name WORD, --memory WORD
 *                    for those who read lists of processes
 * It ends when the kernel does, with 0 if that has switched its machine off; and the kernel ends with
 * it. In its working directory, which is the machine's, it needs a name or two.
 *
 * The guest may be anybody, and may have its kernel's process in its hands: what either says is
 * looked at before anything is done.
 */
#define _GNU_SOURCE
#include "supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define EVENTS 64
/* Seconds from when the kernel has left its device until it has to have ended. */
#define LAST_MOMENTS 10
/* Milliseconds until it is tried again to interrupt a guest that has not heard many times. */
#define ROOM_STEP 10

static int epoll = -1, signals = -1;

static _Noreturn void end(int status)
{
	kernel_kill();
	kernel_clear();
	exit(status);
}

void fail(const char *what, const char *about)
{
	if (errno)
		fprintf(stderr, "encamp-supervisor: %s %s: %s\n", what, about, strerror(errno));
	else
		fprintf(stderr, "encamp-supervisor: %s %s\n", what, about);
	end(1);
}

void driven_wrongly(const char *how)
{
	errno = 0;
	fail("the machine is ended: its kernel", how);
}

/* Memory that was there when the kernel showed it to us has gone, or its file system is full. */
static void memory_gone(int number)
{
	static const char sentence[] = "encamp-supervisor: the machine's memory cannot be reached\n";

	ssize_t written = write(2, sentence, sizeof sentence - 1);
	(void)written, (void)number; /* Nobody else is left to be told. */
	if (kernel_pid() > 0)
		kill(-kernel_pid(), SIGKILL);
	kernel_clear();
	_exit(1);
}

static void change_watch(int how, int fd, uint32_t events, enum kind kind, unsigned index)
{
	struct epoll_event event = { .events = events, .data.u64 = (uint64_t)kind << 32 | index };

	if (epoll_ctl(epoll, how, fd, &event) < 0)
		fail("cannot watch", "a descriptor");
}

void watch(int fd, uint32_t events, enum kind kind, unsigned index)
{
	change_watch(EPOLL_CTL_ADD, fd, events, kind, index);
}

void watch_again(int fd, uint32_t events, enum kind kind, unsigned index)
{
	change_watch(EPOLL_CTL_MOD, fd, events, kind, index);
}

/* A signal that whoever started us has blocked is not meant for us. */
static void take_signals(sigset_t *before)
{
	sigset_t ours;

	sigemptyset(&ours);
	sigaddset(&ours, SIGCHLD);
	sigaddset(&ours, SIGALRM);
	sigprocmask(SIG_SETMASK, NULL, before);
	if (!sigismember(before, SIGTERM))
		sigaddset(&ours, SIGTERM);
	if (!sigismember(before, SIGINT))
		sigaddset(&ours, SIGINT);
	sigprocmask(SIG_BLOCK, &ours, NULL);
	/* Were it ignored, children would end without a word. */
	signal(SIGCHLD, SIG_DFL);
	signals = signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK);
	if (signals < 0)
		fail("cannot receive", "signals");
	watch(signals, EPOLLIN, SIGNALS, 0);
	signal(SIGPIPE, SIG_IGN);
	struct sigaction gone = { .sa_handler = memory_gone, .sa_flags = SA_RESETHAND };
	sigaction(SIGBUS, &gone, NULL);
}

static _Noreturn void end_with_kernel(int status)
{
	/* What the guest had said before is in memory that is still there. */
	console_finish();
	if (WIFSIGNALED(status))
		fprintf(stderr, "encamp-supervisor: the kernel ended by signal %d\n", WTERMSIG(status));
	else if (WEXITSTATUS(status) != 0)
		fprintf(stderr, "encamp-supervisor: the kernel ended with status %d\n", WEXITSTATUS(status));
	end(status == 0 ? 0 : 1);
}

static void hear_signals(void)
{
	struct signalfd_siginfo got;
	int status;

	while (read(signals, &got, sizeof got) == sizeof got) {
		if (got.ssi_signo == SIGTERM || got.ssi_signo == SIGINT)
			end(128 + (int)got.ssi_signo);
		if (got.ssi_signo == SIGALRM && !kernel_paused())
			driven_wrongly("has left its device");
		if (got.ssi_signo == SIGALRM)
			alarm(LAST_MOMENTS);
	}
	if (kernel_ended(&status))
		end_with_kernel(status);
}

static void happened(enum kind kind, unsigned index, uint32_t events)
{
	switch (kind) {
	case SIGNALS:
		hear_signals();
		break;
	case DOOR:
		vhost_accept();
		break;
	case WIRE:
		/* Usually it ends next. */
		if (!vhost_read())
			alarm(LAST_MOMENTS);
		break;
	case LISTENER:
		port_event(index, events);
		break;
	case CLIENT:
		client_event(index, events);
		break;
	case MONITOR:
		monitor_accept();
		break;
	case ASKER:
		asker_event(index);
		break;
	}
}

static _Noreturn void serve(void)
{
	struct epoll_event events[EVENTS];
	bool more = false;

	for (;;) {
		int limit = vhost_call_again() ? -1 : ROOM_STEP;
		int count = epoll_wait(epoll, events, EVENTS, more ? 0 : limit);
		if (count < 0 && errno != EINTR)
			fail("cannot wait for", "events");
		for (int i = 0; i < count; i++)
			happened((enum kind)(events[i].data.u64 >> 32), (unsigned)events[i].data.u64, events[i].events);
		more = console_pump();
	}
}

/* One that was inherited; the kernel is not to have it as it is. */
static int descriptor(const char *word)
{
	char *end;
	long fd = strtol(word, &end, 10);

	errno = 0;
	if (*end || end == word || fd < 0 || fd > 1 << 20)
		fail("is given no descriptor:", word);
	if (fcntl((int)fd, F_SETFD, FD_CLOEXEC) < 0)
		fail("cannot use descriptor", word);
	return (int)fd;
}

static int listener(const char *word)
{
	int fd = descriptor(word);

	if (fcntl(fd, F_SETFL, O_NONBLOCK) < 0)
		fail("cannot use descriptor", word);
	return fd;
}

static void add_port(char *word)
{
	char *number = strchr(word, '=');

	errno = 0;
	if (!number || number == word || number - word > 100 || port_count == PORTS_MOST)
		fail("cannot have the port", word);
	*number++ = 0;
	ports[port_count].name = word;
	ports[port_count].client = -1;
	ports[port_count++].listener = listener(number);
}

int main(int argc, char **argv)
{
	const char *console = NULL;
	int monitor = -1, i = 1;
	sigset_t before;

	for (; i < argc && strcmp(argv[i], "--") != 0; i++) {
		const char *option = argv[i];
		bool more = i + 1 < argc;
		if (!strcmp(option, "--console") && more) {
			console = argv[++i];
		} else if (!strcmp(option, "--monitor") && more) {
			monitor = listener(argv[++i]);
		} else if (!strcmp(option, "--port") && more) {
			add_port(argv[++i]);
		} else if (!strcmp(option, "--loader") && more) {
			kernel_loader = descriptor(argv[++i]);
		} else if (!strcmp(option, "--library") && more) {
			kernel_library = descriptor(argv[++i]);
		} else if ((!strcmp(option, "--name") || !strcmp(option, "--memory")) && more) {
			i++;
		} else {
			errno = 0;
			fail("does not understand", option);
		}
	}
	errno = 0;
	if (i + 1 >= argc || !console || monitor < 0 || port_count == 0)
		fail("needs", "--console, --monitor, --port and -- KERNEL");
	prctl(PR_SET_NAME, "encamp-supervisor");
	epoll = epoll_create1(EPOLL_CLOEXEC);
	if (epoll < 0)
		fail("cannot wait for", "events");
	take_signals(&before);
	monitor_open(monitor);
	for (unsigned port = 0; port < port_count; port++)
		watch(ports[port].listener, EPOLLIN | EPOLLET, LISTENER, port);
	kernel_start(argv + i + 1, console, &before);
	serve();
}
