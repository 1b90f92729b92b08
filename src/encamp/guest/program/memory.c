#include "memory.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#include "console.h"
#include "stream.h"

enum {
    LOOK_MS = 2000,
    PAGE = 4096,
    PAGES = 256, /* more than the kernel keeps aside for each processor */
};

static uint64_t due;

int memory_deadline(void)
{
    if (!in_machine || !streams_any()) {
        due = 0;
        return -1;
    }
    uint64_t now = now_ms();
    if (due == 0)
        due = now + LOOK_MS;
    return due > now ? (int)(due - now) : 0;
}

/* When memory runs out, a command can come to wait for a page of its own program to be read in
   again. What the kernel needs for that, it asks for in a way that never ends anybody, and so it
   may ask for ever. Whoever asks in the usual way makes it end the largest process. */
void memory_look(void)
{
    if (due == 0 || now_ms() < due)
        return;
    due = now_ms() + LOOK_MS;
    volatile char *start =
        mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED)
        return;
    for (size_t i = 0; i < PAGES; i++)
        start[i * PAGE] = 1;
    munmap((void *)start, PAGES * PAGE);
}
