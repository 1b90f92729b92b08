/* Loaded into the program: what was handed over for reading is opened again for reading only.
 *
 * QEMU maps a template's memory privately, for which reading would do. But it insists on opening it
 * for writing, and then has a descriptor by which whoever takes QEMU over changes the memory of all
 * other machines of that template. So its request for /proc/self/fd/N is answered with what N itself
 * may do. QEMU 8.2 and later can be told not to insist; this way serves all versions.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

static const char INHERITED[] = "/proc/self/fd/";

static int granted(const char *path, int flags)
{
	if ((flags & O_ACCMODE) != O_RDWR || strncmp(path, INHERITED, sizeof INHERITED - 1))
		return flags;
	int held = fcntl(atoi(path + sizeof INHERITED - 1), F_GETFL);
	if (held < 0 || (held & O_ACCMODE) != O_RDONLY)
		return flags;
	return (flags & ~O_ACCMODE) | O_RDONLY;
}

int open64(const char *path, int flags, ...)
{
	va_list rest;
	va_start(rest, flags);
	mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
	va_end(rest);
	return openat(AT_FDCWD, path, granted(path, flags), mode);
}

/* What callers that were compiled with other options name it. */
int __open64_2(const char *path, int flags)
{
	return openat(AT_FDCWD, path, granted(path, flags), 0);
}

int open(const char *, int, ...) __attribute__((alias("open64")));
int __open_2(const char *, int) __attribute__((alias("__open64_2")));
