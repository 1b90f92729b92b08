"""Packing files of the host, to be copied into a machine."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from encamp.guest.archive_format import (
    ATTRIBUTES_LIMIT,
    DEPTH_LIMIT,
    HOLE,
    NAME_LIMIT,
    NUMBER,
    START,
    Entry,
    Kind,
    encode_attributes,
)
from encamp.model.errors import Code, EncampError

CHUNK = 1 << 18
HOLE_PART = 1 << 30
LINKS_LIMIT = 1 << 16


def pack(sources: Iterable[tuple[Path, str]], *, mode: int | None = None) -> Iterator[bytes]:
    """An archive of `sources`, in pieces of about 256 KiB.

    Each source is a file or directory of the host and the name it gets in the archive. One that
    is a symbolic link is followed; links below it are kept as links. One that is not there raises
    an error before anything is given out, and what cannot be read below it is told to the
    receiver, who fails because of it after having unpacked the rest. `mode` is what all files get
    instead of their own permissions.
    """
    pairs = [(os.fsencode(path), os.fsencode(name)) for path, name in sources]
    for path, name in pairs:
        if b"/" in name or name in (b"", b".", b".."):
            raise EncampError(Code.USAGE, f"'{os.fsdecode(name)}' cannot be the name of a file.")
        try:
            Path(os.fsdecode(path)).stat()
        except OSError as error:
            raise EncampError(
                Code.INPUT_MISSING, f"Cannot copy '{os.fsdecode(path)}': {error.strerror}."
            ) from error
    return _Packer(mode).run(pairs)


def pack_content(name: str, content: bytes, *, mode: int, mtime_ns: int) -> bytes:
    """An archive of one file that is nowhere on the host. Its directories, if `name` has any, are
    its owner's alone."""
    entries = bytearray(START)
    *directories, _ = name.split("/")
    for depth in range(len(directories)):
        above = "/".join(directories[: depth + 1]).encode()
        entries += Entry(kind=Kind.DIRECTORY, name=above, mode=0o700, mtime_ns=mtime_ns).encode()
    entries += Entry(kind=Kind.FILE, name=os.fsencode(name), mode=mode, mtime_ns=mtime_ns).encode()
    for at in range(0, len(content), CHUNK):
        piece = content[at : at + CHUNK]
        entries += NUMBER.pack(len(piece)) + piece
    entries += NUMBER.pack(0) + NUMBER.pack(0)
    return bytes(entries + Entry(kind=Kind.END).encode())


class _Packer:
    def __init__(self, mode: int | None) -> None:
        self._mode = mode
        self._pending = bytearray()
        self._links: dict[tuple[int, int], bytes] = {}

    def run(self, pairs: list[tuple[bytes, bytes]]) -> Iterator[bytes]:
        self._pending += START
        for path, name in pairs:
            yield from self._tree(path, name, None, follow=True, depth=0)
        self._pending += Entry(kind=Kind.END).encode()
        yield bytes(self._pending)

    def _ready(self) -> Iterator[bytes]:
        if len(self._pending) >= CHUNK:
            yield bytes(self._pending)
            self._pending.clear()

    def _problem(self, name: bytes, sentence: str) -> None:
        self._pending += Entry(kind=Kind.ERROR, name=name, link=sentence.encode()).encode()

    def _tree(
        self, path: bytes, name: bytes, directory: int | None, *, follow: bool, depth: int
    ) -> Iterator[bytes]:
        yield from self._ready()
        if depth > DEPTH_LIMIT or len(name) > NAME_LIMIT:
            self._problem(name[:NAME_LIMIT], "it lies too deep in its directory")
            return
        try:
            status = os.stat(path, dir_fd=directory, follow_symlinks=follow)
            if stat.S_ISLNK(status.st_mode):
                self._entry(Kind.SYMLINK, name, status, link=os.readlink(path, dir_fd=directory))
            elif stat.S_ISFIFO(status.st_mode):
                self._entry(Kind.FIFO, name, status)
            elif stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
                # Never wait: what was a file may have become a fifo since.
                flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                fd = os.open(path, flags | (0 if follow else os.O_NOFOLLOW), dir_fd=directory)
                try:
                    yield from self._opened(fd, name, depth)
                finally:
                    os.close(fd)
            else:
                self._problem(name, "a socket or device cannot be copied")
        except OSError as error:
            self._problem(name, error.strerror or str(error))

    def _opened(self, fd: int, name: bytes, depth: int) -> Iterator[bytes]:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            self._entry(Kind.DIRECTORY, name, status, attributes=_attributes(fd))
            for found in sorted(os.listdir(fd)):
                below = os.fsencode(found)
                yield from self._tree(below, name + b"/" + below, fd, follow=False, depth=depth + 1)
        elif not stat.S_ISREG(status.st_mode):
            self._problem(name, "it changed while it was being copied")
        else:
            where = (status.st_dev, status.st_ino)
            if status.st_nlink > 1 and where in self._links:
                self._entry(Kind.HARDLINK, name, status, link=self._links[where])
                return
            if status.st_nlink > 1 and len(self._links) < LINKS_LIMIT:
                self._links[where] = name
            self._entry(Kind.FILE, name, status, attributes=_attributes(fd))
            yield from self._content(fd, status)

    def _entry(
        self,
        kind: Kind,
        name: bytes,
        status: os.stat_result,
        *,
        link: bytes = b"",
        attributes: bytes = b"",
    ) -> None:
        mode = stat.S_IMODE(status.st_mode)
        if self._mode is not None and kind is Kind.FILE:
            mode = self._mode
        self._pending += Entry(
            kind=kind,
            mode=mode,
            uid=status.st_uid,
            gid=status.st_gid,
            mtime_ns=status.st_mtime_ns,
            name=name,
            link=link,
            attributes=attributes,
        ).encode()

    def _content(self, fd: int, status: os.stat_result) -> Iterator[bytes]:
        failure = 0
        at = 0
        try:
            for start, end in _data_ranges(fd, status):
                self._hole(start - at)
                at = start
                while at < end:
                    data = os.pread(fd, min(CHUNK, end - at), at)
                    if not data:
                        break
                    self._pending += NUMBER.pack(len(data))
                    self._pending += data
                    at += len(data)
                    yield from self._ready()
        except OSError as error:
            failure = error.errno or errno.EIO
        self._pending += NUMBER.pack(0) + NUMBER.pack(failure)

    def _hole(self, length: int) -> None:
        while length > 0:
            part = min(length, HOLE_PART)
            self._pending += NUMBER.pack(HOLE | part)
            length -= part


def _data_ranges(fd: int, status: os.stat_result) -> Iterator[tuple[int, int]]:
    """Where a file has data: wherever it can be read, unless it is sparse and its file system
    can tell. The last range of a sparse one is empty and marks where its last hole ends."""
    at = 0
    while at < status.st_size and status.st_blocks * 512 < status.st_size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
            at = os.lseek(fd, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                yield status.st_size, status.st_size
                return
            break
        yield start, at
    yield at, sys.maxsize


def _attributes(fd: int) -> bytes:
    """The user's own extended attributes, where the file system has any."""
    try:
        keys = [key for key in os.listxattr(fd) if key.startswith("user.")]
        encoded = encode_attributes({os.fsencode(key): os.getxattr(fd, key) for key in keys})
    except OSError:
        return b""
    return encoded if len(encoded) <= ATTRIBUTES_LIMIT else b""
