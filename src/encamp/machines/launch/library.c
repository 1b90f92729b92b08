/* The library of preload.c, as a part of this program: no file of it has to be found, or to be
 * readable to whom the machine's process runs as. */
#define _GNU_SOURCE
#include "launch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8
#endif

__asm__(".section .rodata\n"
	"library_begin: .incbin \"" LIBRARY "\"\n"
	"library_end:\n"
	".previous\n");
extern const char library_begin[], library_end[];

void preload(void)
{
	/* It is mapped, not run; some hosts forbid files in memory that could be. */
	int fd = memfd_create("encamp-preload", MFD_NOEXEC_SEAL);
	if (fd < 0 && errno == EINVAL)
		fd = memfd_create("encamp-preload", 0);
	ssize_t size = library_end - library_begin;
	char name[64];
	snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
	if (fd < 0 || write(fd, library_begin, size) != size || setenv("LD_PRELOAD", name, 1) < 0)
		fail("cannot hand over", "its library");
}
