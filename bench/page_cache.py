"""What of a file is in the host's memory, and how to get it out of there."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

PAGE = mmap.PAGESIZE


def evict(path: Path) -> None:
    """Let the kernel forget what it has read of a file."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached(path: Path) -> int:
    """How many bytes of a file are in the page cache. There is never more than one copy."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        pages = -(-size // PAGE)
        present = (ctypes.c_ubyte * pages)()
        # Private, so that it may be handed to C as if it could be written to; it never is.
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
            start = ctypes.c_ubyte.from_buffer(mapped)
            failed = libc.mincore(
                ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), present
            )
            del start
        if failed:
            raise OSError(ctypes.get_errno(), "mincore")
    return min(size, sum(page & 1 for page in present) * PAGE)


def read_from_disk(pid: int) -> int:
    """Bytes that a process, with all its threads, has made the kernel fetch from a disk."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        name, _, value = line.partition(": ")
        if name == "read_bytes":
            return int(value)
    raise AssertionError("the kernel always has that line")
