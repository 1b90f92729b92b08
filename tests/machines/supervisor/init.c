/* The init of a machine in which the supervisor is tried. `roles=` on the kernel's command line has a
 * letter for each of its ports: e says back what it is told, s only says when it has heard all, n opens
 * it and never reads, c obeys commands, a line each; and - is left alone. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char roles[64], names[64][64], devices[64][32];
static int count;

static void rest(long milliseconds)
{
	struct timespec time = { milliseconds / 1000, milliseconds % 1000 * 1000000 };
	nanosleep(&time, NULL);
}

static int find_ports(void)
{
	DIR *all = opendir("/sys/class/virtio-ports");
	int found = 0;
	for (struct dirent *entry; all && (entry = readdir(all));) {
		char path[300];
		int number;
		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "/sys/class/virtio-ports/%s/name", entry->d_name);
		FILE *file = fopen(path, "r");
		if (!file)
			continue;
		sscanf(entry->d_name, "vport%*dp%d", &number);
		if (fscanf(file, "%63s", names[number]) == 1)
			found++;
		snprintf(devices[number], sizeof devices[number], "/dev/%.20s", entry->d_name);
		fclose(file);
	}
	if (all)
		closedir(all);
	return found;
}

static void write_all(int fd, const char *from, size_t size)
{
	while (size > 0) {
		ssize_t went = write(fd, from, size);
		if (went < 0 && errno == EINTR)
			continue;
		if (went <= 0)
			return;
		from += went;
		size -= (size_t)went;
	}
}

/* What has come; waits for somebody to be there. */
static size_t read_some(int fd, char *to, size_t size)
{
	for (;;) {
		ssize_t got = read(fd, to, size);
		if (got > 0)
			return (size_t)got;
		rest(1);
	}
}

static void echo(int fd)
{
	static char bytes[65536];
	for (;;)
		write_all(fd, bytes, read_some(fd, bytes, sizeof bytes));
}

/* Told a number of bytes in 16 characters, hear as many, and say so. */
static void swallow(int fd)
{
	static char bytes[65536];
	for (;;) {
		size_t got = 0, wanted;
		while (got < 16)
			got += read_some(fd, bytes + got, 16 - got);
		bytes[16] = 0;
		wanted = strtoul(bytes, NULL, 10);
		for (got = 0; got < wanted;)
			got += read_some(fd, bytes, sizeof bytes);
		write_all(fd, "done", 4);
	}
}

static void burn(void)
{
	for (volatile unsigned turns = 0;; turns++)
		;
}

static void fork_on(void)
{
	for (;;) {
		pid_t child = fork();
		if (child == 0)
			_exit(0);
		if (child < 0)
			_exit(1);
		waitpid(child, NULL, 0);
	}
}

static bool put(const char *path, const char *what)
{
	int fd = open(path, O_WRONLY);
	bool went = fd >= 0 && write(fd, what, strlen(what)) > 0;
	close(fd);
	return went;
}

static void serve(void);

static char *obey(char *line)
{
	static char answer[4096];
	int number, size, fd;
	char text[64];

	strcpy(answer, "ok");
	if (!strcmp(line, "names")) {
		*answer = 0;
		for (int i = 0; i < count; i++)
			strcat(strcat(answer, names[i]), " ");
	} else if (!strcmp(line, "burn")) {
		if (fork() == 0)
			burn();
	} else if (!strcmp(line, "forks")) {
		if (fork() == 0)
			fork_on();
	} else if (!strcmp(line, "forking")) {
		/* Does a process that was asked to still make others? */
		strcpy(answer, waitpid(-1, NULL, WNOHANG) > 0 ? "no" : "yes");
	} else if (sscanf(line, "flood %d", &size) == 1) {
		fd = open("/dev/console", O_WRONLY | O_NONBLOCK | O_NOCTTY);
		memset(text, 'x', sizeof text);
		text[63] = '\n';
		for (; size > 0; size -= 64)
			if (write(fd, text, 64) < 0 && errno == EAGAIN)
				break;
		close(fd);
	} else if (sscanf(line, "say %d", &size) == 1) {
		FILE *log = fopen("/dev/kmsg", "w");
		for (; size > 0; size--) {
			fprintf(log, "<3>what the kernel has to say, line %d\n", size);
			fflush(log);
		}
		fclose(log);
	} else if (sscanf(line, "poll %d", &number) == 1) {
		fd = open(devices[number], O_RDWR | O_NONBLOCK);
		struct pollfd seen = { .fd = fd, .events = POLLOUT };
		poll(&seen, 1, 0);
		sprintf(answer, "%s%s", fd < 0 ? "closed " : "", seen.revents & POLLHUP ? "hup" : seen.revents & POLLOUT ? "out" : "");
		close(fd);
	} else if (sscanf(line, "write %d %d %63s", &number, &size, text) == 3) {
		/* So many bytes of a text over and over, by a process of its own. */
		if (fork() == 0) {
			fd = open(devices[number], O_RDWR);
			char *all = malloc((size_t)size);
			for (int i = 0; i < size; i++)
				all[i] = text[(size_t)i % strlen(text)];
			write_all(fd, all, (size_t)size);
			rest(100000000);
		}
	} else if (sscanf(line, "touch %d", &size) == 1) {
		char *all = mmap(NULL, (size_t)size << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		for (int i = 0; i < size << 20; i += 4096)
			all[i] = 1;
		munmap(all, (size_t)size << 20);
	} else if (!strcmp(line, "last words")) {
		strcpy(answer, "");
		for (int i = 0; i < 1000; i++)
			strcat(answer, "bye ");
	} else if (!strcmp(line, "off")) {
		reboot(RB_POWER_OFF);
	} else if (!strcmp(line, "halt")) {
		reboot(RB_HALT_SYSTEM);
	} else if (!strcmp(line, "reboot")) {
		reboot(RB_AUTOBOOT);
	} else if (!strcmp(line, "crash")) {
		put("/proc/sysrq-trigger", "c");
	} else if (!strcmp(line, "rebind")) {
		/* Take the driver from the device, and give it back: the ports are others then. */
		if (fork() == 0) {
			rest(100);
			put("/sys/bus/virtio/drivers/virtio_console/unbind", "virtio0");
			put("/sys/bus/virtio/drivers/virtio_console/bind", "virtio0");
			serve();
			for (;;)
				pause();
		}
	} else if (!strcmp(line, "unplug")) {
		put("/sys/bus/platform/drivers/virtio-uml/unbind", "virtio-uml.0");
	} else {
		strcpy(answer, "what?");
	}
	return answer;
}

static void command(int fd)
{
	static char line[4096];
	size_t used = 0;
	for (;;) {
		used += read_some(fd, line + used, sizeof line - used);
		for (char *end; (end = memchr(line, '\n', used)) != NULL;) {
			*end = 0;
			bool last = !strcmp(line, "last words");
			char *answer = obey(line);
			strcat(answer, "\n");
			write_all(fd, answer, strlen(answer));
			if (last)
				reboot(RB_POWER_OFF);
			used -= (size_t)(end + 1 - line);
			memmove(line, end + 1, used);
		}
	}
}

/* A process for each port. */
static void serve(void)
{
	while (find_ports() < count)
		rest(1);
	for (int i = 0; i < count; i++) {
		if (roles[i] == '-' || fork() != 0)
			continue;
		int fd = open(devices[i], O_RDWR);
		if (roles[i] == 'e')
			echo(fd);
		if (roles[i] == 's')
			swallow(fd);
		if (roles[i] == 'c')
			command(fd);
		for (;;)
			pause();
	}
}

/* Of a kernel that has what it needs as modules. */
static void load_modules(void)
{
	FILE *order = fopen("/modules/order", "r");
	char name[200], path[220];

	while (order && fscanf(order, "%199s", name) == 1) {
		snprintf(path, sizeof path, "/modules/%s", name);
		int module = open(path, O_RDONLY | O_CLOEXEC);
		if (syscall(SYS_finit_module, module, "", 0) < 0)
			perror(path);
		close(module);
	}
	if (order)
		fclose(order);
}

int main(void)
{
	char words[4096] = "";

	mount("proc", "/proc", "proc", 0, NULL);
	mount("sys", "/sys", "sysfs", 0, NULL);
	mount("dev", "/dev", "devtmpfs", 0, NULL);
	load_modules();
	int fd = open("/proc/cmdline", O_RDONLY);
	if (read(fd, words, sizeof words - 1) < 0)
		return 1;
	close(fd);
	char *found = strstr(words, "roles=");
	sscanf(found ? found : "", "roles=%63s", roles);
	count = (int)strlen(roles);
	serve();
	printf("all ports are there\n");
	for (;;)
		if (wait(NULL) < 0)
			pause();
}
