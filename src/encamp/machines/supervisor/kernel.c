/* The machine's kernel: a process group of its own, in which are the kernel's process and one for each
 * address space that programs of the guest's have. */
#define _GNU_SOURCE
#include "supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Where the kernel puts its pid and a socket for those who administer it. */
#define PLACE "uml"
#define OWN_WORDS 6
#define PAUSE_TRIES 2000
#define PAUSE_STEP 1000000 /* nanoseconds */

/* Where a kernel that needs another C library than the host's looks for its loader. */
#define LOADER 9
#define LIBRARY 8
#define PRELOAD "LD_PRELOAD=/proc/self/fd/8"

int kernel_loader = -1, kernel_library = -1;
static pid_t kernel;
static bool paused, by_seccomp;

static _Noreturn void run(char **words, int console, int errors, pid_t parent, const sigset_t *mask)
{
	int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	setsid();
	/* The kernel would do so itself, and then run itself again, by a path that may be closed to it. */
	personality(PER_LINUX | ADDR_NO_RANDOMIZE);
	signal(SIGPIPE, SIG_DFL);
	/* That the console's file may not grow is no reason to end. */
	signal(SIGXFSZ, SIG_IGN);
	sigprocmask(SIG_SETMASK, mask, NULL);
	bool ready = nothing >= 0 && dup2(nothing, 0) == 0 && dup2(console, 1) == 1 && dup2(console, 2) == 2;
	if (ready && kernel_loader >= 0) {
		char *preload[] = { PRELOAD, NULL };
		if (dup2(kernel_loader, LOADER) == LOADER && dup2(kernel_library, LIBRARY) == LIBRARY)
			execve(words[0], words, preload);
	} else if (ready) {
		execv(words[0], words);
	}
	dprintf(errors, "encamp-supervisor: cannot run %s: %s\n", words[0], strerror(errno));
	_exit(127);
}

/* A process of the guest's that just begins does not yet ask to die with the kernel's process, and is
 * left if both of us are killed then, with all of the machine's memory. This one sees us end, and ends
 * what is left of the kernel's group. */
static void guard(void)
{
	sigset_t all;
	char byte;
	int ends[2];

	if (pipe2(ends, O_CLOEXEC) < 0)
		fail("cannot make", "a pipe");
	pid_t child = fork();
	if (child < 0)
		fail("cannot", "fork");
	close(ends[child > 0 ? 0 : 1]);
	if (child > 0)
		return;
	prctl(PR_SET_NAME, "encamp-guard");
	setsid();
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	/* Nobody is to wait for the end of what else we have. */
	dup2(ends[0], 0);
	if (syscall(SYS_close_range, 1, ~0u, 0) < 0)
		for (int fd = 1; fd < 1024; fd++)
			close(fd);
	while (read(0, &byte, 1) < 0)
		;
	kill(-kernel, SIGKILL);
	_exit(0);
}

void kernel_start(char **words, const char *console, const sigset_t *mask)
{
	static char *const own[OWN_WORDS] = {
		"virtio_uml.device=" DOOR_NAME ":3", "uml_dir=.", "umid=" PLACE,
		"con0=null,fd:1", "con=null", "ssl=null",
	};
	unsigned count = 0;

	for (; words[count]; count++)
		if (strncmp(words[count], "seccomp=", 8) == 0)
			by_seccomp = strcmp(words[count] + 8, "on") == 0;
	/* Ours come first: what follows a word `--` is not the kernel's. */
	char *all[count + OWN_WORDS + 1];
	all[0] = words[0];
	memcpy(all + 1, own, sizeof own);
	memcpy(all + 1 + OWN_WORDS, words + 1, count * sizeof *words);

	kernel_clear();
	int file = open(console, O_WRONLY | O_APPEND | O_CREAT | O_NOCTTY | O_CLOEXEC, 0600);
	if (file < 0)
		fail("cannot open", console);
	int errors = fcntl(2, F_DUPFD_CLOEXEC, 3);
	/* Processes of the guest's outlive the kernel's for a moment. They become our children, so we
	 * end after them. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	vhost_listen();
	pid_t parent = getpid();
	kernel = fork();
	if (kernel < 0)
		fail("cannot", "fork");
	if (kernel == 0)
		run(all, file, errors, parent, mask);
	guard();
	close(file);
	close(errors);
}

pid_t kernel_pid(void)
{
	return kernel;
}

/* Call a function for each child of a process's, which has one thread. False: it cannot be told. */
static bool each_child(pid_t parent, void (*visit)(pid_t child))
{
	char path[64];
	pid_t child;

	snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)parent, (int)parent);
	FILE *file = fopen(path, "re");
	if (!file)
		return false;
	while (fscanf(file, "%d", &child) == 1)
		visit(child);
	fclose(file);
	return true;
}

static void end_child(pid_t child)
{
	kill(child, SIGKILL);
}

static int end_all(void)
{
	int status = 0, others;

	kill(-kernel, SIGKILL);
	while (waitpid(kernel, &status, 0) < 0 && errno == EINTR)
		;
	/* Also those that have left the group. */
	do
		each_child(getpid(), end_child);
	while (waitpid(-1, &others, 0) > 0 || errno == EINTR);
	kernel = 0;
	return status;
}

bool kernel_ended(int *ended)
{
	siginfo_t info = { 0 };

	/* It is not reaped yet: while its group is ended, its number is not given to others. */
	if (waitid(P_PID, (id_t)kernel, &info, WEXITED | WNOHANG | WNOWAIT) < 0 || info.si_pid == 0)
		return false;
	*ended = end_all();
	return true;
}

void kernel_kill(void)
{
	if (kernel > 0)
		end_all();
}

void kernel_clear(void)
{
	unlink(DOOR_NAME);
	unlink(PLACE "/pid");
	unlink(PLACE "/mconsole");
	rmdir(PLACE);
}

bool kernel_paused(void)
{
	return paused;
}

static void wait_a_step(void)
{
	struct timespec step = { .tv_nsec = PAUSE_STEP };
	nanosleep(&step, NULL);
}

static unsigned running;

/* A program of the guest's that the kernel would have to stop: the signal makes it turn to the kernel.
 * One that is only beginning would die of it, and turns to the kernel by itself. */
static void stop_child(pid_t child)
{
	char path[64], line[256], state = 0;
	unsigned long long caught = 0;
	int tracer = 0;

	snprintf(path, sizeof path, "/proc/%d/status", (int)child);
	FILE *file = fopen(path, "re");
	if (!file)
		return;
	while (fgets(line, sizeof line, file)) {
		sscanf(line, "State: %c", &state);
		sscanf(line, "TracerPid: %d", &tracer);
		sscanf(line, "SigCgt: %llx", &caught);
	}
	fclose(file);
	if (state != 'R')
		return;
	running++;
	if (tracer != 0 || caught & 1ull << (SIGALRM - 1))
		kill(child, SIGALRM);
}

static bool is_stopped(void)
{
	siginfo_t info = { 0 };
	return waitid(P_PID, (id_t)kernel, &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

static const char *stop_one_by_one(void)
{
	kill(kernel, SIGSTOP);
	/* Until then it may be making a child, which shares its memory. */
	for (unsigned tries = 0; !is_stopped(); tries++) {
		if (tries == PAUSE_TRIES)
			return "the kernel does not stop";
		wait_a_step();
	}
	for (unsigned tries = 0; tries < PAUSE_TRIES; tries++) {
		running = 0;
		if (!each_child(kernel, stop_child))
			return "this host does not tell whose child a process is";
		if (running == 0)
			return NULL;
		wait_a_step();
	}
	return "a program goes on";
}

const char *kernel_pause(void)
{
	const char *why = NULL;

	if (paused)
		return NULL;
	/* Before, it tries what its host can do with processes, and takes a signal for a failure. */
	if (!vhost_is_open())
		return "the kernel is not at its device";
	/* Traced processes must not be stopped by others than their tracer: it would give up. Those that
	 * seccomp confines have none, and could do without turning to their kernel. */
	if (by_seccomp)
		kill(-kernel, SIGSTOP);
	else
		why = stop_one_by_one();
	if (why)
		kill(kernel, SIGCONT);
	paused = !why;
	return why;
}

void kernel_resume(void)
{
	if (paused)
		kill(by_seccomp ? -kernel : kernel, SIGCONT);
	paused = false;
}
