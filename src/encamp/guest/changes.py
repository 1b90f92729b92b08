"""What a machine changed, as its guest packs it, made into a tar archive: the content of a layer.

The machine is not trusted: whatever it sends, the archive holds names that lead only downwards and
no more than the machine could have written; nothing but that archive is touched.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Generator, Mapping
from typing import BinaryIO

import msgspec

from encamp.guest.archive_format import (
    CHUNK_LIMIT,
    HOLE,
    Entry,
    Kind,
    decode_attributes,
    name_valid,
)
from encamp.guest.archive_read import ERRNO_MAX, NAME_MAX, Need, Reader, number, printable
from encamp.guest.frames import senseless
from encamp.model.errors import Code, EncampError

KINDS = frozenset(Kind) - {Kind.MISSING}
ATTRIBUTES = (b"user.", b"security.capability", b"trusted.overlay.opaque")
TYPES = {
    Kind.DIRECTORY: tarfile.DIRTYPE,
    Kind.FILE: tarfile.REGTYPE,
    Kind.SYMLINK: tarfile.SYMTYPE,
    Kind.HARDLINK: tarfile.LNKTYPE,
    Kind.FIFO: tarfile.FIFOTYPE,
    Kind.CHARACTER: tarfile.CHRTYPE,
    Kind.BLOCK: tarfile.BLKTYPE,
}
PATH_MAX = 4095
SIZE_LIMIT = 64 << 30
"""Of all files together as a program reads them, holes and all."""
EDITED_LIMIT = 1 << 20
LATEST = (1 << 32) - 1
"""The last second that the image's file system can tell."""
MAJOR_LIMIT, MINOR_LIMIT = 1 << 12, 1 << 20

Edit = Callable[[bytes], bytes]
"""What becomes of a file's content."""


class Limits(msgspec.Struct, frozen=True):
    """What an honest machine cannot exceed."""

    data: int
    """Bytes, without holes."""
    entries: int


class Changes(Reader):
    """Writes the archive to `out` as the machine's comes in. `edits` are made to files by name."""

    def __init__(self, out: BinaryIO, limits: Limits, edits: Mapping[bytes, Edit]) -> None:
        self.out = out
        self.limits = limits
        self.edits = edits
        self.entries = 0
        self.data = 0
        self._size = 0
        super().__init__(KINDS)

    def finish(self) -> None:
        """The machine's bytes are all in."""
        self.close()
        if not self.whole:
            raise EncampError(
                Code.COPY_FAILED,
                "What the machine changed did not arrive whole: its archive ends too early.",
            )
        self.out.write(bytes(2 * tarfile.BLOCKSIZE))
        self.out.truncate()

    def _entry(self, entry: Entry) -> Generator[Need, memoryview, None]:
        if entry.kind is Kind.ERROR:
            raise EncampError(
                Code.COPY_FAILED,
                f"'{printable(entry.name)}' of the machine could not be saved:"
                f" {printable(entry.link)}.",
            )
        self._check(entry)
        member = tarfile.TarInfo(f"./{os.fsdecode(entry.name)}")
        member.type = TYPES[entry.kind]
        member.mode, member.uid, member.gid = entry.mode, entry.uid, entry.gid
        member.mtime = min(LATEST, max(0, entry.mtime_ns // 1_000_000_000))
        member.pax_headers = {
            f"SCHILY.xattr.{_attribute(entry, key)}": os.fsdecode(value)
            for key, value in decode_attributes(entry.attributes, ATTRIBUTES).items()
        }
        if entry.kind is Kind.FILE:
            yield from self._file(entry, member)
            return
        if entry.kind is Kind.HARDLINK:
            member.linkname = f"./{os.fsdecode(entry.link)}"
        elif entry.kind is Kind.SYMLINK:
            member.linkname = os.fsdecode(entry.link)
        elif entry.kind in (Kind.CHARACTER, Kind.BLOCK):
            member.devmajor, member.devminor = _device(entry.link)
        self._header(member)

    def _check(self, entry: Entry) -> None:
        self.entries += 1
        if self.entries > self.limits.entries:
            raise senseless("more files than it has room for")
        names = [entry.name, *([entry.link] if entry.kind is Kind.HARDLINK else [])]
        for name in names:
            long = len(name) > PATH_MAX or max(map(len, name.split(b"/"))) > NAME_MAX
            if long or not name_valid(name):
                raise senseless(f"a file of the name '{printable(name)}'")
        if b"\0" in entry.link:
            raise senseless("a link with a zero byte")

    def _file(self, entry: Entry, member: tarfile.TarInfo) -> Generator[Need, memoryview, None]:
        """Its size comes first; as many bytes have to follow."""
        if not entry.link.isdigit() or len(entry.link) > 20:
            raise senseless("a file without a size")
        member.size = int(entry.link)
        self._size += member.size
        if self._size > SIZE_LIMIT:
            raise EncampError(
                Code.COPY_FAILED,
                f"'{printable(entry.name)}' makes what the machine changed larger than"
                f" {SIZE_LIMIT >> 30} GiB.",
                "Remove large files, also those with holes, before the machine is saved.",
            )
        edit = self.edits.get(entry.name)
        if edit is not None and member.size <= EDITED_LIMIT:
            content = bytearray(member.size)
            yield from self._content(entry, member.size, content)
            edited = edit(bytes(content))
            member.size = len(edited)
            self._header(member)
            self.out.write(edited)
        else:
            self._header(member)
            yield from self._content(entry, member.size, None)
        self._skip(-member.size % tarfile.BLOCKSIZE)

    def _content(
        self, entry: Entry, size: int, into: bytearray | None
    ) -> Generator[Need, memoryview, None]:
        at = 0
        while length := number((yield 4, 4)):
            hole = length & HOLE
            length &= ~HOLE
            if length > size - at or (not hole and length > CHUNK_LIMIT):
                raise senseless("a file that is longer than it said")
            if hole:
                at += length
                if into is None:
                    self._skip(length)
                continue
            self.data += length
            if self.data > self.limits.data:
                raise senseless("more data than it has room for")
            while length:
                piece = yield 1, length
                if into is None:
                    self.out.write(piece)
                else:
                    into[at : at + len(piece)] = piece
                at += len(piece)
                length -= len(piece)
        failure = min(number((yield 4, 4)), ERRNO_MAX)
        if failure:
            raise EncampError(
                Code.COPY_FAILED,
                f"'{printable(entry.name)}' of the machine could not be read:"
                f" {os.strerror(failure)}.",
            )
        if at != size:
            raise senseless("a file that is shorter than it said")

    def _header(self, member: tarfile.TarInfo) -> None:
        self.out.write(member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))

    def _skip(self, count: int) -> None:
        """Zeros, as a hole."""
        self.out.seek(count, os.SEEK_CUR)


def _attribute(entry: Entry, key: bytes) -> str:
    """An attribute's name, as an archive can tell it."""
    try:
        name = key.decode()
    except UnicodeDecodeError:
        name = ""
    if not name or "=" in name:
        raise EncampError(
            Code.COPY_FAILED,
            f"'{printable(entry.name)}' of the machine could not be saved: an image has no place"
            f" for its extended attribute '{printable(key)}'.",
            "Names of attributes must be UTF-8 without '='; 'setfattr -x' removes one.",
        )
    return name


def _device(numbers: bytes) -> tuple[int, int]:
    major, colon, minor = numbers.partition(b":")
    if len(numbers) > 32 or not (colon and major.isdigit() and minor.isdigit()):
        raise senseless("a device without numbers")
    if int(major) >= MAJOR_LIMIT or int(minor) >= MINOR_LIMIT:
        raise senseless("a device with impossible numbers")
    return int(major), int(minor)
