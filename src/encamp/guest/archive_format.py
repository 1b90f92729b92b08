"""The archive that carries files between host and machine: its entries, and what it may hold."""

from __future__ import annotations

import enum
import struct

import msgspec

from encamp.guest.frames import senseless

START = b"ENCAMP1\n"
ENTRY = struct.Struct("<BIIIqIIII")
NUMBER = struct.Struct("<I")
ATTRIBUTE = struct.Struct("<HI")

NAME_LIMIT = 65536
ATTRIBUTES_LIMIT = 262144
CHUNK_LIMIT = 1 << 20
DEPTH_LIMIT = 256
HOLE = 0x80000000
"""A chunk's length with this bit is a hole of that many zeros, with no bytes following."""


class Kind(enum.IntEnum):
    DIRECTORY = ord("d")
    FILE = ord("f")
    SYMLINK = ord("l")
    HARDLINK = ord("h")
    FIFO = ord("p")
    CHARACTER = ord("c")
    BLOCK = ord("b")
    MISSING = ord("m")
    ERROR = ord("x")
    END = ord("e")


COPIED = frozenset(Kind) - {Kind.CHARACTER, Kind.BLOCK}
"""What there is in an archive of files to be copied."""


class Entry(msgspec.Struct, kw_only=True):
    kind: Kind
    mode: int = 0
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    name: bytes = b""
    link: bytes = b""
    attributes: bytes = b""

    def encode(self) -> bytes:
        seconds, nanoseconds = divmod(self.mtime_ns, 1_000_000_000)
        head = ENTRY.pack(
            self.kind,
            self.mode,
            self.uid,
            self.gid,
            seconds,
            nanoseconds,
            len(self.name),
            len(self.link),
            len(self.attributes),
        )
        return head + self.name + self.link + self.attributes


def decode_head(head: bytes, kinds: frozenset[Kind] = COPIED) -> tuple[Entry, int, int, int]:
    """An entry without its name, link and attributes, and how long those are."""
    kind, mode, uid, gid, seconds, nanoseconds, name, link, attributes = ENTRY.unpack(head)
    if kind not in kinds:
        raise senseless(f"an archive entry of kind {kind}")
    if name > NAME_LIMIT or link > NAME_LIMIT or attributes > ATTRIBUTES_LIMIT:
        raise senseless("an archive entry with a name that is too long")
    if nanoseconds >= 1_000_000_000 or not -(1 << 31) <= seconds < 1 << 34:
        raise senseless("an archive entry from an impossible time")
    entry = Entry(
        kind=Kind(kind),
        mode=mode & 0o7777,
        uid=uid,
        gid=gid,
        mtime_ns=seconds * 1_000_000_000 + nanoseconds,
    )
    return entry, name, link, attributes


def name_valid(name: bytes) -> bool:
    """Relative, and of components that lead only downwards."""
    return b"\0" not in name and all(part not in (b"", b".", b"..") for part in name.split(b"/"))


def encode_attributes(attributes: dict[bytes, bytes]) -> bytes:
    return b"".join(
        ATTRIBUTE.pack(len(key), len(value)) + key + value for key, value in attributes.items()
    )


USERS_OWN = (b"user.",)
"""Other attributes could change what the host lets a file do."""


def decode_attributes(data: bytes, wanted: tuple[bytes, ...] = USERS_OWN) -> dict[bytes, bytes]:
    """Those that begin as one of the wanted."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        if len(data) - at < ATTRIBUTE.size:
            raise senseless("damaged extended attributes")
        key_length, value_length = ATTRIBUTE.unpack_from(data, at)
        at += ATTRIBUTE.size
        if key_length + value_length > len(data) - at:
            raise senseless("damaged extended attributes")
        key = data[at : at + key_length]
        if key.startswith(wanted) and b"\0" not in key:
            found[key] = data[at + key_length : at + key_length + value_length]
        at += key_length + value_length
    return found
