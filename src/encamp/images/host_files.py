"""Files of the host that become part of a tree. Their directory may be somebody else's, who may
exchange what is in it for links at any moment: no link on the way is followed, and what a file is
is asked of the opened file."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path

from encamp.images.tree import Entry, changed
from encamp.model.recipe import EPOCH

CAREFULLY = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
"""What is no file after all must neither be waited for nor become our terminal."""


def open_regular(path: Path) -> BufferedReader:
    """Open what a user named, if it is a file; the way there may be one of links."""
    return as_file(os.open(path, CAREFULLY), str(path))


def as_file(handle: int, name: str) -> BufferedReader:
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    raise OSError(errno.EINVAL, "it is no regular file", name)


@contextmanager
def directory_below(top: Path, below: str) -> Iterator[int]:
    """A directory, reached from another one without any link on the way."""
    handle = os.open(top, CAREFULLY | os.O_DIRECTORY)
    try:
        for name in Path(below).parts:
            inner = os.open(name, CAREFULLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=handle)
            os.close(handle)
            handle = inner
        yield handle
    finally:
        os.close(handle)


def open_below(top: Path, above: str, name: str) -> BufferedReader:
    """A file, reached from a directory without any link on the way."""
    with directory_below(top, above) as directory:
        handle = os.open(name, CAREFULLY | os.O_NOFOLLOW, dir_fd=directory)
    return as_file(handle, str(top / above / name))


@dataclass(frozen=True)
class HostFile:
    """A file that content is copied from: that very one, whatever has its name by then."""

    top: Path
    below: str
    """Its path below a directory; '' if it was named itself."""
    inode: tuple[int, int] = (0, 0)

    def open(self) -> BufferedReader:
        name = str(self.top / self.below)
        try:
            file = self.opened()
        except OSError as error:
            raise changed(name) from error
        found = os.fstat(file.fileno())
        if (found.st_dev, found.st_ino) != self.inode:
            file.close()
            raise changed(name)
        return file

    def opened(self) -> BufferedReader:
        if not self.below:
            return open_regular(self.top)
        above, _, name = self.below.rpartition("/")
        return open_below(self.top, above, name)


def host_entries(source: Path, mode: int | None = None) -> Iterator[tuple[str, Entry]]:
    """A file, or a directory and all below it, as entries of a tree; a given mode is that of the
    files."""
    if not stat.S_ISDIR(source.stat().st_mode):
        with open_regular(source) as file:
            yield "", file_entry(file, HostFile(source, ""), mode)
        return
    linked: dict[tuple[int, int], Entry] = {}
    pending = [""]
    while pending:
        below = pending.pop()
        with directory_below(source, below) as directory:
            yield below, plain_entry(tarfile.DIRTYPE, os.fstat(directory))
            inner = []
            for name in sorted(os.listdir(directory)):
                path = f"{below}/{name}" if below else name
                found = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    inner.append(path)
                elif stat.S_ISLNK(found.st_mode):
                    target = os.readlink(name, dir_fd=directory)
                    yield path, replace(plain_entry(tarfile.SYMTYPE, found), link=target)
                elif stat.S_ISFIFO(found.st_mode):
                    yield path, plain_entry(tarfile.FIFOTYPE, found)
                elif stat.S_ISREG(found.st_mode):
                    identity = (found.st_dev, found.st_ino)
                    if identity not in linked:
                        handle = os.open(name, CAREFULLY | os.O_NOFOLLOW, dir_fd=directory)
                        with as_file(handle, str(source / path)) as file:
                            linked[identity] = file_entry(file, HostFile(source, path), mode)
                    yield path, linked[identity]
                # Sockets and devices mean nothing in another machine.
        pending += reversed(inner)


def plain_entry(kind: bytes, found: os.stat_result) -> Entry:
    mtime = EPOCH if kind == tarfile.DIRTYPE else max(0, int(found.st_mtime))
    return Entry(kind, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, mtime)


def file_entry(file: BufferedReader, origin: HostFile, mode: int | None) -> Entry:
    found = os.fstat(file.fileno())
    sha256 = hashlib.file_digest(file, "sha256").digest()
    plain = plain_entry(tarfile.REGTYPE, found)
    return replace(
        plain,
        mode=plain.mode if mode is None else mode,
        size=file.tell(),
        sha256=sha256,
        source=origin.top / origin.below,
        origin=replace(origin, inode=(found.st_dev, found.st_ino)),
    )
