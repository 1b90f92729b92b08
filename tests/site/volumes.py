"""File systems and block devices for one test, which the kernel itself takes back.

A mount lives in a mount namespace of its own, held by a process that dies with the test; a loop
device clears itself when the last descriptor of it is closed. So nothing is left, whatever happens.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

LOOP_CTL_GET_FREE = 0x4C82
LOOP_CONFIGURE = 0x4C0A
LOOP_CONFIG_SIZE = 304
FLAGS_OFFSET = 60
AUTOCLEAR = 4

WHERE = Path("/mnt")
"""Where anybody's account gets to. Nobody else's /mnt is touched: the namespace is private."""

FIEMAP = 0xC020660B
FIEMAP_HEAD = struct.Struct("=QQLLLL")
FIEMAP_EXTENT = struct.Struct("=QQQ2QL3L")
SHARED = 0x2000
EXTENTS = 512


@dataclass(frozen=True)
class Mounted:
    """A file system that only those see who enter its namespace."""

    path: Path
    """As seen inside."""
    holder: int

    @property
    def outside(self) -> Path:
        """The same directory, seen by the test."""
        return Path(f"/proc/{self.holder}/root{self.path}")

    @property
    def enter(self) -> tuple[str, ...]:
        """The words before a command that is to run inside."""
        return ("nsenter", f"--mount=/proc/{self.holder}/ns/mnt")


@contextmanager
def mounted(directory: Path, kind: str, size: int) -> Iterator[Mounted]:
    """A new file system of this kind, in a file."""
    file = directory / f"{kind}.image"
    with file.open("xb") as image:
        image.truncate(size)
    subprocess.run([f"mkfs.{kind}", "-q", file], check=True)
    script = 'mount -o loop "$1" "$2" && chmod 711 "$2" && echo mounted && exec sleep infinity'
    words = ["unshare", "--mount", "--propagation", "private", "--"]
    words += ["setpriv", "--pdeathsig", "KILL", "sh", "-c", script, "sh", str(file), str(WHERE)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"mounted\n"
            yield Mounted(WHERE, holder.pid)
        finally:
            left = in_namespace_of(holder.pid)
            holder.kill()
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            holder.wait()
            file.unlink()


def in_namespace_of(holder: int) -> list[int]:
    """All processes that see what the holder sees: also machines that a failed test left there.
    None if it has no namespace of its own."""
    found: list[int] = []
    try:
        wanted = Path(f"/proc/{holder}/ns/mnt").readlink()
    except OSError:
        return found
    if wanted == Path("/proc/self/ns/mnt").readlink():
        return found
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and (entry / "ns" / "mnt").readlink() == wanted:
                found.append(int(entry.name))
    return found


@contextmanager
def block_device(file: Path) -> Iterator[Path]:
    """A block device with a file's content."""
    with open("/dev/loop-control", "rb") as control:
        device = Path(f"/dev/loop{fcntl.ioctl(control, LOOP_CTL_GET_FREE)}")
    with device.open("r+b", buffering=0) as loop, file.open("r+b") as backing:
        config = bytearray(LOOP_CONFIG_SIZE)
        struct.pack_into("=L", config, 0, backing.fileno())
        struct.pack_into("=L", config, FLAGS_OFFSET, AUTOCLEAR)
        fcntl.ioctl(loop, LOOP_CONFIGURE, bytes(config))
        yield device


def shared_bytes(path: Path) -> int:
    """How much of a file is in blocks that another file has too, as the file system says."""
    head = FIEMAP_HEAD.pack(0, 1 << 62, 1, 0, EXTENTS, 0)
    request = bytearray(head + bytes(FIEMAP_EXTENT.size * EXTENTS))
    with path.open("rb") as file:
        fcntl.ioctl(file, FIEMAP, request)
    count = FIEMAP_HEAD.unpack_from(request)[3]
    found = 0
    for number in range(count):
        extent = FIEMAP_EXTENT.unpack_from(request, FIEMAP_HEAD.size + number * FIEMAP_EXTENT.size)
        found += extent[2] if extent[5] & SHARED else 0
    return found


def fill(directory: Path) -> Path:
    """A file that takes all the room its file system has left."""
    filler = directory / "filler"
    with filler.open("xb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 20))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    return filler


def allocated(path: Path) -> int:
    """What a file takes of its disk."""
    return path.stat().st_blocks * 512
