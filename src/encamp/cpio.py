"""Writing cpio archives of the kind the kernel unpacks ("newc"), the same bytes every time."""

from __future__ import annotations

import stat
from collections.abc import Iterable

import msgspec

BLOCK = 512
"""The kernel unpacks archives one after the other if each starts on a boundary of its own."""

TRAILER = "TRAILER!!!"


class Entry(msgspec.Struct, frozen=True):
    """One file, directory (`mode` says which) or link of an archive."""

    name: str
    data: bytes = b""
    mode: int = stat.S_IFREG | 0o644
    device: tuple[int, int] = (0, 0)
    """What a device node stands for: major and minor number."""


def directory(name: str) -> Entry:
    return Entry(name, mode=stat.S_IFDIR | 0o755)


def archive(entries: Iterable[Entry]) -> bytes:
    """The archive of these entries, owned by root, of no particular time, padded to `BLOCK`."""
    parts: list[bytes] = []
    for inode, entry in enumerate(entries, start=1):
        parts += member(entry, inode)
    parts += member(Entry(TRAILER, mode=0), 0)
    whole = b"".join(parts)
    return whole + bytes(-len(whole) % BLOCK)


def member(entry: Entry, inode: int) -> tuple[bytes, ...]:
    name = entry.name.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    fields = (
        inode,
        entry.mode,
        *(0, 0),  # owner, group
        links,
        0,  # time
        len(entry.data),
        *(0, 0),  # device the file is on
        *entry.device,
        len(name),
        0,  # checksum, unused in this kind
    )
    header = b"070701" + b"".join(b"%08X" % field for field in fields) + name
    return header, bytes(-len(header) % 4), entry.data, bytes(-len(entry.data) % 4)
