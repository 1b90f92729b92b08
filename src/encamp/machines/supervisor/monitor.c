/* Whoever asks and commands us, by the monitor's socket: a line each, and a line for an answer. */
#define _GNU_SOURCE
#include "supervisor.h"

#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define ASKERS_MOST 8
#define LINE_MOST 64

static struct asker {
	int fd;
	size_t count;
	char line[LINE_MOST];
} askers[ASKERS_MOST];
static unsigned next;
static int monitor;

void monitor_open(int fd)
{
	monitor = fd;
	for (unsigned i = 0; i < ASKERS_MOST; i++)
		askers[i].fd = -1;
	watch(fd, EPOLLIN, MONITOR, 0);
}

static void leave(struct asker *asker)
{
	close(asker->fd);
	asker->fd = -1;
}

void monitor_accept(void)
{
	int fd = accept4(monitor, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0)
		return;
	/* The one that has waited longest has had its time. */
	struct asker *asker = &askers[next];
	if (asker->fd >= 0)
		leave(asker);
	asker->fd = fd;
	asker->count = 0;
	watch(fd, EPOLLIN, ASKER, next);
	next = (next + 1) % ASKERS_MOST;
}

static void answer(struct asker *asker, const char *what)
{
	char line[128];
	int length;
	const char *why = NULL;

	if (strcmp(what, "pause") == 0)
		why = kernel_pause();
	else if (strcmp(what, "resume") == 0)
		kernel_resume();
	else if (strcmp(what, "status") != 0)
		why = "this is not a command";
	if (why)
		length = snprintf(line, sizeof line, "error: %s\n", why);
	else if (strcmp(what, "status") == 0)
		length = snprintf(line, sizeof line, "%s\n", kernel_paused() ? "paused" : "running");
	else
		length = snprintf(line, sizeof line, "ok\n");
	send(asker->fd, line, (size_t)length, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void asker_event(unsigned index)
{
	struct asker *asker = &askers[index];

	if (asker->fd < 0)
		return;
	ssize_t got = recv(asker->fd, asker->line + asker->count, LINE_MOST - asker->count, MSG_DONTWAIT);
	if (got > 0)
		asker->count += (size_t)got;
	char *end = memchr(asker->line, '\n', asker->count);
	if (got > 0 && !end && asker->count < LINE_MOST)
		return;
	if (end)
		*end = 0;
	if (got > 0)
		answer(asker, end ? asker->line : "");
	leave(asker);
}
