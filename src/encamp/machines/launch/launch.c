/* encamp-launch [options] -- PROGRAM ARG...
 *
 * Starts a machine's process, or the one that serves its shares:
 *   --directory DIR       work there (entered before rights are given up)
 *   --lock FILE           hold a lock on FILE for as long as the process lives. Whoever asks the
 *                         kernel about the lock learns whether the machine is alive, and its pid:
 *                         no pid file to go stale, no moment in which a machine is unknown
 *   --file-limit BYTES    no file grows beyond this
 *   --die-with-parent PID end when the process that started us, PID, does
 *   --detach              be nobody's child: return once the program runs, which goes on in the
 *                         background; or when that has failed
 *   --shield              let no signal but those that cannot be refused end the process, nor
 *                         any that a batch system sends to all processes of a job: the job is
 *                         inside, and is told in another way
 *   --program FD          run this open file, wherever it lies: its path may be closed to the user.
 *                         PROGRAM is only its name then
 *   --user UID:GID        run as this user (needs root)
 *   --group GID           with this group beside the user's own
 *   --share SOURCE TARGET, --share-readonly SOURCE TARGET
 *                         show root's directory SOURCE as TARGET, root's files appearing as the
 *                         user's (needs root and --user)
 *   --confine             let the process reach no other process and no file, but those that it
 *                         inherits, its directory, and with all that is below them:
 *   --readable PATH, --writable PATH, --device PATH
 *   --traces              with --confine: let it have children that it traces and signals
 *   --watches             with --confine: let it be told what is done in directories that it may read
 *   --sockets none|internet
 *                         let it make no sockets, or only those of the internet
 */
#define _GNU_SOURCE
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHARES_MAX 64 /* as many as a machine can have */
#define PLACES_MAX (SHARES_MAX + 32)

/* Whoever waits for a detached process sees this closed when its program is run. */
static int waiting = -1;

void fail(const char *what, const char *about)
{
	if (errno)
		fprintf(stderr, "encamp-launch: %s %s: %s\n", what, about, strerror(errno));
	else
		fprintf(stderr, "encamp-launch: %s %s\n", what, about);
	/* Our end alone would look the same. */
	if (waiting >= 0 && write(waiting, "", 1) != 1)
		_exit(126);
	_exit(125);
}

static unsigned long long number(const char *text, char end, const char **rest)
{
	char *after;
	errno = 0;
	unsigned long long value = strtoull(text, &after, 10);
	if (errno || after == text || *after != end || *text == '-') {
		errno = 0;
		fail("not a number:", text);
	}
	if (rest)
		*rest = after + 1;
	return value;
}

/* The lock is a POSIX one: it survives exec and belongs to the pid, which is what is asked for. */
static void hold_lock(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	if (fd < 0 || fcntl(fd, F_SETLK, &lock) < 0)
		fail("cannot lock", path);
}

static void limit_files(unsigned long long bytes)
{
	struct rlimit limit = { bytes, bytes }, before;
	if (getrlimit(RLIMIT_FSIZE, &before) < 0)
		fail("cannot read", "the file size limit");
	if (before.rlim_max < bytes)
		return;
	if (setrlimit(RLIMIT_FSIZE, &limit) < 0)
		fail("cannot set", "the file size limit");
}

/* Huge pages would give a machine memory that it never asked for. A kernel without them is fine. */
static void no_huge_pages(void)
{
	prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
}

/* A machine's memory must not end up in a file because its process crashed. */
static void no_core_files(void)
{
	struct rlimit none = { 0, 0 };
	if (setrlimit(RLIMIT_CORE, &none) < 0)
		fail("cannot set", "the core file limit");
}

static void default_signals(void)
{
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	for (int number = 1; number < NSIG; number++)
		signal(number, SIG_DFL);
	/* What a batch system lets a job know it may send to everything that is the job's. */
	signal(SIGUSR1, SIG_IGN);
	signal(SIGUSR2, SIG_IGN);
	signal(SIGXCPU, SIG_IGN);
	/* A limit reached is an error to the writer, not the end of the machine, whoever has set it. */
	signal(SIGXFSZ, SIG_IGN);
}

/* Blocked signals stay so in the program: QEMU asks for those that it needs itself, and keeps what
 * others have blocked. What it does wrong still ends it. */
static void shield(void)
{
	static const int faults[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS,
	                              SIGCHLD, SIGCONT, SIGALRM, SIGIO };
	sigset_t set;
	sigfillset(&set);
	for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
		sigdelset(&set, faults[i]);
	sigprocmask(SIG_SETMASK, &set, NULL);
}

/* Go on in a child that is init's from when we return. */
static void detach(void)
{
	int failed[2];
	char byte;
	if (pipe2(failed, O_CLOEXEC) < 0)
		fail("cannot make", "a pipe");
	/* Nobody is to count us as a second machine meanwhile. */
	prctl(PR_SET_NAME, "encamp-wait");
	pid_t child = fork();
	if (child < 0)
		fail("cannot", "fork");
	if (child == 0) {
		prctl(PR_SET_NAME, "encamp-launch");
		close(failed[0]);
		setsid();
		waiting = failed[1];
		return;
	}
	close(failed[1]);
	_exit(read(failed[0], &byte, 1) == 0 ? 0 : 125);
}

/* After the shares were attached below the process's directory, and before its program is run. */
static void confine(const struct place *given, int given_count, const struct share *shares, int share_count,
                    bool traces, bool watches)
{
	struct place places[PLACES_MAX + SHARES_MAX + 1];
	bool writes = false;
	int count = 0;
	places[count++] = (struct place){ ".", WORKPLACE };
	for (int i = 0; i < given_count; i++)
		places[count++] = given[i];
	for (int i = 0; i < share_count; i++)
		places[count++] = (struct place){ shares[i].target, shares[i].readonly ? READABLE : WRITABLE };
	for (int i = 0; i < count; i++)
		writes |= places[i].kind == WRITABLE;
	confine_files(places, count);
	refuse_neighbours(traces);
	if (!watches)
		refuse_watching();
	if (!writes)
		refuse_attributes();
}

int main(int argc, char **argv)
{
	struct share shares[SHARES_MAX];
	struct place places[PLACES_MAX];
	int share_count = 0, place_count = 0;
	const char *directory = NULL, *lock = NULL, *sockets = NULL, *rest;
	unsigned long long file_limit = 0;
	bool detached = false, other_user = false, shielded = false, confined = false, traces = false, watches = false;
	int program = -1;
	uid_t uid = 0;
	gid_t gid = 0, group = 0;
	pid_t parent = 0;

	int i = 1;
	for (; i < argc && strcmp(argv[i], "--") != 0; i++) {
		const char *option = argv[i];
		int left = argc - i - 1;
		if (!strcmp(option, "--die-with-parent") && left) {
			parent = number(argv[++i], '\0', NULL);
		} else if (!strcmp(option, "--detach")) {
			detached = true;
		} else if (!strcmp(option, "--shield")) {
			shielded = true;
		} else if (!strcmp(option, "--directory") && left) {
			directory = argv[++i];
		} else if (!strcmp(option, "--lock") && left) {
			lock = argv[++i];
		} else if (!strcmp(option, "--file-limit") && left) {
			file_limit = number(argv[++i], '\0', NULL);
		} else if (!strcmp(option, "--program") && left) {
			program = number(argv[++i], '\0', NULL);
		} else if (!strcmp(option, "--user") && left) {
			uid = number(argv[++i], ':', &rest);
			gid = number(rest, '\0', NULL);
			other_user = true;
		} else if (!strcmp(option, "--group") && left) {
			group = number(argv[++i], '\0', NULL);
		} else if (!strncmp(option, "--share", 7) && left > 1 && share_count < SHARES_MAX) {
			shares[share_count].readonly = !strcmp(option, "--share-readonly");
			shares[share_count].source = argv[++i];
			shares[share_count++].target = argv[++i];
		} else if (!strcmp(option, "--confine")) {
			confined = true;
		} else if (!strcmp(option, "--traces")) {
			traces = true;
		} else if (!strcmp(option, "--watches")) {
			watches = true;
		} else if (!strcmp(option, "--readable") && left && place_count < PLACES_MAX) {
			places[place_count++] = (struct place){ argv[++i], READABLE };
		} else if (!strcmp(option, "--writable") && left && place_count < PLACES_MAX) {
			places[place_count++] = (struct place){ argv[++i], WRITABLE };
		} else if (!strcmp(option, "--device") && left && place_count < PLACES_MAX) {
			places[place_count++] = (struct place){ argv[++i], DEVICE };
		} else if (!strcmp(option, "--sockets") && left) {
			sockets = argv[++i];
		} else {
			errno = 0;
			fail("does not understand", option);
		}
	}
	errno = 0;
	if (i + 1 >= argc)
		fail("needs", "-- PROGRAM");
	if (other_user && (uid == 0 || gid == 0))
		fail("never runs a machine as", "root");
	if (sockets && strcmp(sockets, "none") && strcmp(sockets, "internet"))
		fail("does not know the sockets", sockets);
	if (share_count && !other_user)
		fail("--share needs", "--user");

	umask(077);
	default_signals();
	if (shielded)
		shield();
	no_core_files();
	no_huge_pages();
	if (detached)
		detach();
	if (lock)
		hold_lock(lock);
	if (directory && chdir(directory) < 0)
		fail("cannot enter", directory);
	if (file_limit)
		limit_files(file_limit);
	if (share_count) {
		int user_namespace = namespace_for(uid, gid);
		attach_shares(shares, share_count, user_namespace);
		become_inside(user_namespace, group);
	} else if (other_user) {
		become(uid, gid, group);
	}
	give_up_capabilities();
	if (confined)
		confine(places, place_count, shares, share_count, traces, watches);
	if (sockets)
		refuse_sockets(!strcmp(sockets, "none"));
	refuse_modes(other_user);
	preload();

	/* After the change of user, which would have undone it. */
	if (parent) {
		if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
			fail("cannot follow", "its parent");
		if (getppid() != parent)
			_exit(125);
	}
	if (program < 0)
		execv(argv[i + 1], argv + i + 1);
	else if (fcntl(program, F_SETFD, FD_CLOEXEC) == 0)
		fexecve(program, argv + i + 1, environ);
	fail("cannot run", argv[i + 1]);
}
