/* The machine's memory. The kernel has it in a file, which we map, too. */
#define _GNU_SOURCE
#include "supervisor.h"

#include <sys/mman.h>
#include <sys/stat.h>

static struct region {
	uint64_t guest, user, size;
	uint8_t *bytes;
} regions[REGIONS_MOST];
static unsigned region_count;

void memory_map(const struct memory_table *table, const int *files)
{
	struct stat file;

	while (region_count > 0) {
		struct region *region = &regions[--region_count];
		munmap(region->bytes, region->size);
	}
	for (unsigned i = 0; i < table->count; i++) {
		uint64_t size = table->regions[i].size, offset = table->regions[i].offset;
		/* What lies behind a file's end cannot be touched. That it may be made shorter later is
		 * main.c's business: see SIGBUS. */
		if (fstat(files[i], &file) < 0 || !S_ISREG(file.st_mode) || size == 0 ||
		    offset > (uint64_t)file.st_size || size > (uint64_t)file.st_size - offset)
			driven_wrongly("shows memory that is not there");
		void *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, files[i], (off_t)offset);
		if (bytes == MAP_FAILED)
			fail("cannot map", "the machine's memory");
		regions[region_count++] = (struct region){
			.guest = table->regions[i].guest,
			.user = table->regions[i].user,
			.size = size,
			.bytes = bytes,
		};
	}
}

static bool is_within(const struct region *region, uint64_t offset, uint64_t size)
{
	return offset <= region->size && size <= region->size - offset;
}

void *memory_at(uint64_t address, uint64_t size)
{
	for (const struct region *region = regions; region < regions + region_count; region++)
		if (is_within(region, address - region->guest, size))
			return region->bytes + (address - region->guest);
	return NULL;
}

void *memory_of_queue(uint64_t address, uint64_t size, unsigned alignment)
{
	for (const struct region *region = regions; region < regions + region_count; region++) {
		uint8_t *found = region->bytes + (address - region->user);
		if (is_within(region, address - region->user, size) && (uintptr_t)found % alignment == 0)
			return found;
	}
	driven_wrongly("has a queue outside its memory");
}
