"""The initramfs that brings the guest program into a machine: a cpio archive, the same for the
same program, to be put after the one that holds the image's kernel modules."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec

BLOCK = 512
"""Padding to whole blocks lets archives be put one after another."""
END = "TRAILER!!!"
DIRECTORIES = ("dev", "proc", "sys", "lower", "writable", "machine")
CONSOLE = (5, 1)
"""Without its console the kernel starts /init with no standard streams at all."""


class Entry(msgspec.Struct, frozen=True):
    name: str
    mode: int
    content: bytes = b""
    device: tuple[int, int] = (0, 0)


def write_cpio(entries: list[Entry]) -> bytes:
    """A `newc` archive. Everything in it is root's and dated 1970: same content, same bytes."""
    archive = bytearray()
    for inode, entry in enumerate([*entries, Entry(END, 0)], start=1):
        name = entry.name.encode() + b"\0"
        is_end = entry.name == END
        numbers = (
            0 if is_end else inode,
            entry.mode,
            0,  # uid
            0,  # gid
            2 if stat.S_ISDIR(entry.mode) else 1,
            0,  # mtime
            len(entry.content),
            0,  # device the file was on
            0,
            *entry.device,
            len(name),
            0,  # checksum, which this variant has not
        )
        archive += b"070701" + b"".join(b"%08X" % number for number in numbers)
        archive += name
        archive += bytes(-len(archive) % 4)
        archive += entry.content
        archive += bytes(-len(archive) % 4)
    archive += bytes(-len(archive) % BLOCK)
    return bytes(archive)


def guest_initramfs(guest_program: Path) -> bytes:
    """An archive with the guest program as /init."""
    entries = [Entry(name, stat.S_IFDIR | 0o755) for name in DIRECTORIES]
    entries.append(Entry("dev/console", stat.S_IFCHR | 0o600, device=CONSOLE))
    entries.append(Entry("init", stat.S_IFREG | 0o755, guest_program.read_bytes()))
    return write_cpio(entries)
