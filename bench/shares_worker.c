/* shares_worker DIR: what programs do with files, in DIR. Prints a name and milliseconds for each.
 * Runs in a machine, as root; "cold" means that the machine's kernel has forgotten what it knew. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LARGE = 64, FILES = 300, SIZE = 4096, TREES = 30, LEAVES = 100 };

static char block[1 << 20], path[256];

static void must(long result, const char *what)
{
    if (result < 0) {
        perror(what);
        exit(1);
    }
}

static void forget(void)
{
    int file = open("/proc/sys/vm/drop_caches", O_WRONLY);

    must(write(file, "3", 1), "drop_caches");
    close(file);
}

static void write_large(void)
{
    int file = open("large", O_WRONLY | O_CREAT | O_TRUNC, 0644);

    for (int i = 0; i < LARGE; i++)
        must(write(file, block, sizeof block), "write");
    close(file);
}

static void read_large(void)
{
    int file = open("large", O_RDONLY);

    must(file, "large");
    while (read(file, block, sizeof block) > 0)
        ;
    close(file);
}

static const char *small(int number)
{
    snprintf(path, sizeof path, "small/f%d", number);
    return path;
}

static void create(void)
{
    must(mkdir("small", 0755), "mkdir");
    for (int i = 0; i < FILES; i++) {
        int file = open(small(i), O_WRONLY | O_CREAT | O_EXCL, 0644);

        must(write(file, block, SIZE), "create");
        close(file);
    }
}

static void look(void)
{
    struct stat found;

    for (int i = 0; i < FILES; i++)
        must(stat(small(i), &found), "stat");
}

static void read_small(void)
{
    for (int i = 0; i < FILES; i++) {
        int file = open(small(i), O_RDONLY);

        must(read(file, block, SIZE), "read");
        close(file);
    }
}

static void delete_small(void)
{
    for (int i = 0; i < FILES; i++)
        must(unlink(small(i)), "unlink");
    must(rmdir("small"), "rmdir");
}

static void append(void)
{
    int file = open("log", O_WRONLY | O_CREAT | O_APPEND | O_TRUNC, 0644);

    for (int i = 0; i < 1000; i++)
        must(write(file, block, 100), "append");
    close(file);
}

static int nothing(const char *name, const struct stat *found, int kind, struct FTW *place)
{
    (void)name, (void)found, (void)kind, (void)place;
    return 0;
}

static void walk(void)
{
    must(nftw("trees", nothing, 16, FTW_PHYS), "walk");
}

static void step(const char *name, void (*does)(void))
{
    struct timespec before, after;

    clock_gettime(CLOCK_MONOTONIC, &before);
    does();
    clock_gettime(CLOCK_MONOTONIC, &after);
    printf("%s\t%.3f\n", name,
           (double)(after.tv_sec - before.tv_sec) * 1e3 + (double)(after.tv_nsec - before.tv_nsec) / 1e6);
}

int main(int count, char **words)
{
    if (count != 2 || chdir(words[1]) < 0)
        return 2;
    must(mkdir("trees", 0755), "mkdir");
    for (int i = 0; i < TREES * LEAVES; i++) {
        snprintf(path, sizeof path, "trees/t%d", i / LEAVES);
        mkdir(path, 0755);
        snprintf(path, sizeof path, "trees/t%d/f%d", i / LEAVES, i % LEAVES);
        close(open(path, O_WRONLY | O_CREAT, 0644));
    }
    step("write 64 MiB", write_large);
    forget();
    step("read 64 MiB", read_large);
    step("read it again", read_large);
    step("create 300 files", create);
    forget();
    step("stat 300 files", look);
    step("stat them again", look);
    forget();
    step("read 300 files", read_small);
    step("read them again", read_small);
    step("delete 300 files", delete_small);
    step("append 1000 times", append);
    forget();
    step("walk over 3,030", walk);
    step("walk again", walk);
    return 0;
}
