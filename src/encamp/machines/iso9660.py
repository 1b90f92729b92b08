"""A volume of a few files in the form that every operating system reads: ISO 9660.

No more of the standard than that needs: one directory, files one after another. Names are stored
in capitals, as old readers want them; Linux shows them in small letters.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

SECTOR = 2048
DESCRIPTORS = 16
"""The first sector that means anything; those before it are left to boot loaders."""
LITTLE_TABLE, BIG_TABLE, ROOT = DESCRIPTORS + 2, DESCRIPTORS + 3, DESCRIPTORS + 4
ROOT_NAME, PARENT_NAME = b"\x00", b"\x01"
NO_DATE = bytes([70, 1, 1, 0, 0, 0, 0])
NO_LONG_DATE = b"0" * 16 + b"\x00"
IS_DIRECTORY = 2


def volume(label: str, files: Mapping[str, bytes]) -> bytes:
    """A volume with these files in its root directory: always the same for the same files."""
    bodies = bytearray()
    entries = [entry(ROOT_NAME, ROOT, SECTOR, IS_DIRECTORY)]
    entries += [entry(PARENT_NAME, ROOT, SECTOR, IS_DIRECTORY)]
    for name, data in sorted(files.items()):
        where = ROOT + 1 + len(bodies) // SECTOR
        entries.append(entry(f"{name.upper()}.;1".encode("ascii"), where, len(data)))
        bodies += padded(data)
    directory = b"".join(entries)
    if len(directory) > SECTOR:
        raise ValueError("more files than one sector of a directory holds")
    sectors = ROOT + 1 + len(bodies) // SECTOR
    return b"".join(
        (
            bytes(DESCRIPTORS * SECTOR),
            padded(primary_descriptor(label, sectors)),
            padded(b"\xffCD001\x01"),
            padded(path_table("<")),
            padded(path_table(">")),
            padded(directory),
            bodies,
        )
    )


def primary_descriptor(label: str, sectors: int) -> bytes:
    nobody = b" " * 128
    return b"".join(
        (
            b"\x01CD001\x01\x00",
            b" " * 32,
            label.encode("ascii").ljust(32),
            bytes(8),
            both(">I", sectors),
            bytes(32),
            both(">H", 1) + both(">H", 1) + both(">H", SECTOR),
            both(">I", len(path_table("<"))),
            struct.pack("<II", LITTLE_TABLE, 0) + struct.pack(">II", BIG_TABLE, 0),
            entry(ROOT_NAME, ROOT, SECTOR, IS_DIRECTORY),
            nobody * 4,
            b" " * 37 * 3,
            NO_LONG_DATE * 4,
            b"\x01\x00",
        )
    )


def path_table(order: str) -> bytes:
    """All directories there are: the root, which is its own parent."""
    return struct.pack(f"{order}BBIH", 1, 0, ROOT, 1) + ROOT_NAME + b"\x00"


def entry(name: bytes, sector: int, size: int, flags: int = 0) -> bytes:
    padding = b"" if len(name) % 2 else b"\x00"
    body = b"".join(
        (
            b"\x00",
            both(">I", sector),
            both(">I", size),
            NO_DATE,
            struct.pack("BBB", flags, 0, 0),
            both(">H", 1),
            bytes([len(name)]),
            name,
            padding,
        )
    )
    return bytes([len(body) + 1]) + body


def both(form: str, number: int) -> bytes:
    """A number as the standard wants it: for readers of either byte order, one after the other."""
    return struct.pack(form.replace(">", "<"), number) + struct.pack(form, number)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % SECTOR)
