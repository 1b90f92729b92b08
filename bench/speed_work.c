/* speed_work: what programs compute, and what they ask of a kernel. Prints a name and milliseconds for each. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 100000000, TERMS = 20000000, CALLS = 20000, FORKS = 50, TOUCHED = 64 << 20, PAGE = 4096 };

static void integers(void)
{
    volatile uint32_t result;
    uint32_t value = 1;

    for (int i = 0; i < ROUNDS; i++)
        value = value * 1664525u + 1013904223u;
    result = value;
    (void)result;
}

static void floats(void)
{
    volatile double result;
    double sum = 0;

    for (int i = 1; i < TERMS; i++)
        sum += 1.0 / ((double)i * i);
    result = sum;
    (void)result;
}

static void calls(void)
{
    for (int i = 0; i < CALLS; i++)
        syscall(SYS_getppid);
}

static void forks(void)
{
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();

        if (child == 0)
            _exit(0);
        waitpid(child, NULL, 0);
    }
}

static void touch(void)
{
    char *memory = mmap(NULL, TOUCHED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        exit(1);
    for (size_t at = 0; at < TOUCHED; at += PAGE)
        memory[at] = 1;
    munmap(memory, TOUCHED);
}

static void step(const char *name, void (*does)(void))
{
    struct timespec before, after;

    clock_gettime(CLOCK_MONOTONIC, &before);
    does();
    clock_gettime(CLOCK_MONOTONIC, &after);
    printf("%s\t%.3f\n", name,
           (double)(after.tv_sec - before.tv_sec) * 1e3 + (double)(after.tv_nsec - before.tv_nsec) / 1e6);
    fflush(stdout);
}

int main(void)
{
    step("integers in C", integers);
    step("floating point in C", floats);
    step("20,000 system calls", calls);
    step("50 forks", forks);
    step("first touch of 64 MiB", touch);
    return 0;
}
