"""Unpacking on the host what a machine packed. The machine is not trusted: whatever its archive
says, nothing outside the destination is touched, and nothing is left half written."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Generator, Mapping
from pathlib import Path

import msgspec

from encamp.guest.archive_format import (
    CHUNK_LIMIT,
    COPIED,
    HOLE,
    Entry,
    Kind,
    decode_attributes,
    name_valid,
)
from encamp.guest.archive_read import ERRNO_MAX, NAME_MAX, Need, Reader, number, printable
from encamp.guest.archive_tree import Tree
from encamp.guest.frames import senseless
from encamp.model.errors import Code, EncampError

LISTED = 1000
"""How many names each list of the report holds; a hostile machine could send names for ever."""
SIZE_LIMIT = 1 << 60


class Unpacked(msgspec.Struct):
    """What came of an archive."""

    written: list[str] = []
    """Names in the destination directory, in the order in which they came."""
    missing: list[str] = []
    """Patterns that matched nothing in the machine."""
    errors: list[str] = []
    """Sentences about what could not be copied."""
    files: int = 0
    size: int = 0


class Unpacker(Reader):
    """Unpacks an archive as its bytes come in.

    `rename` gives new first components: a mapping for those it holds, or one name for all, which
    then must be one. `owner` is given to everything if this process is root; who owned it in
    the machine means nothing here, and setuid, setgid and sticky bits are dropped.
    """

    def __init__(
        self,
        destination: Path,
        *,
        rename: Mapping[str, str] | str | None = None,
        owner: tuple[int, int] | None = None,
    ) -> None:
        self.report = Unpacked()
        self._rename = rename
        self._tops: dict[bytes, bytes] = {}
        self._temporary: tuple[int, bytes] | None = None
        if isinstance(rename, str):
            _check_name(rename)
        else:
            for new in (rename or {}).values():
                _check_name(new)
        try:
            self._tree = Tree(destination, owner, self._problem)
        except OSError as error:
            raise EncampError(
                Code.COPY_FAILED, f"Cannot copy into '{destination}': {error.strerror}."
            ) from error
        super().__init__(COPIED)

    def __enter__(self) -> Unpacker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def finish(self) -> Unpacked:
        """The archive's bytes are all in."""
        self.close()
        if not self.whole:
            raise EncampError(
                Code.COPY_FAILED,
                "The files did not arrive whole: the machine's archive ends too early.",
                "What had arrived by then is in place.",
            )
        return self.report

    def close(self) -> None:
        """Leave nothing half done behind."""
        super().close()
        self._discard()
        self._tree.close()

    def _entry(self, entry: Entry) -> Generator[Need, memoryview, None]:
        if entry.kind is Kind.MISSING:
            _note(self.report.missing, printable(entry.name))
            return
        if entry.kind is Kind.ERROR:
            _note(self.report.errors, f"{printable(entry.name)}: {printable(entry.link)}")
            return
        parts = self._place(entry.name)
        if entry.kind is Kind.FILE:
            yield from self._file(entry, parts)
            return
        if parts is None:
            return
        try:
            if entry.kind is Kind.DIRECTORY:
                fd = self._tree.make(parts, entry.mode & 0o777, entry.mtime_ns)
                self._dress(fd, entry)
            else:
                self._special(entry, parts)
        except OSError as error:
            self._problem(entry.name, error)

    def _place(self, name: bytes) -> list[bytes] | None:
        """Where this name goes, or None for a name that is refused."""
        parts = name.split(b"/")
        if not name_valid(name) or max(map(len, parts)) > NAME_MAX:
            _note(self.report.errors, f"{printable(name)}: this name is refused")
            return None
        if parts[0] not in self._tops:
            if isinstance(self._rename, str):
                if self._tops:
                    _note(self.report.errors, f"{printable(name)}: only one name was expected")
                    return None
                top = self._rename
            else:
                top = (self._rename or {}).get(os.fsdecode(parts[0]), os.fsdecode(parts[0]))
            if len(self._tops) >= LISTED * 100:
                raise senseless("an archive with too many names")
            self._tops[parts[0]] = os.fsencode(top)
            _note(self.report.written, top)
        parts[0] = self._tops[parts[0]]
        return parts

    def _file(self, entry: Entry, parts: list[bytes] | None) -> Generator[Need, memoryview, None]:
        """Its content is read to the end also when it cannot be written: more lies behind it."""
        fd: int | None = None
        problem: OSError | None = None
        try:
            if parts is not None:
                try:
                    directory = self._tree.enter(parts[:-1])
                    fd = self._begin(directory)
                except OSError as error:
                    problem = error
            size = 0
            while length := number((yield 4, 4)):
                if length & HOLE:
                    size += length & ~HOLE
                    length = 0
                elif length > CHUNK_LIMIT:
                    raise senseless("an archive with a chunk that is too long")
                if size > SIZE_LIMIT:
                    raise senseless("an archive with a file that is too long")
                while length:
                    piece = yield 1, length
                    if fd is not None and problem is None:
                        try:
                            _write(fd, piece, size)
                        except OSError as error:
                            problem = error
                    size += len(piece)
                    length -= len(piece)
            failure = min(number((yield 4, 4)), ERRNO_MAX)
            if failure and problem is None:
                # Without its number, which is about a disk elsewhere.
                problem = OSError(f"could not be read whole: {os.strerror(failure)}")
            if fd is not None and parts is not None and problem is None:
                try:
                    os.ftruncate(fd, size)
                    self._dress(fd, entry)
                    os.fchmod(fd, entry.mode & 0o777)
                    os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
                    self._settle(parts[-1])
                    self.report.files += 1
                    self.report.size += size
                except OSError as error:
                    problem = error
        finally:
            if fd is not None:
                os.close(fd)
            self._discard()
        if problem is not None:
            self._problem(entry.name, problem)

    def _special(self, entry: Entry, parts: list[bytes]) -> None:
        """A symbolic link, a hard link or a fifo."""
        directory = self._tree.enter(parts[:-1])
        name = _temporary_name()
        self._temporary = (directory, name)
        try:
            if b"\0" in entry.link:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            if entry.kind is Kind.SYMLINK:
                os.symlink(entry.link, name, dir_fd=directory)
            elif entry.kind is Kind.FIFO:
                os.mkfifo(name, entry.mode & 0o777, dir_fd=directory)
            else:
                self._link(entry, directory, name)
            if entry.kind is not Kind.HARDLINK:
                self._tree.own_link(name, directory)
                times = (entry.mtime_ns, entry.mtime_ns)
                os.utime(name, ns=times, dir_fd=directory, follow_symlinks=False)
            os.rename(name, parts[-1], src_dir_fd=directory, dst_dir_fd=directory)
        finally:
            # Also after success: renaming one of two links to the same file does nothing at all.
            self._discard()

    def _link(self, entry: Entry, directory: int, name: bytes) -> None:
        """Only to what this archive brought itself, as far as its first component tells."""
        target = entry.link.split(b"/")
        if not name_valid(entry.link) or target[0] not in self._tops:
            raise OSError(errno.EPERM, "a link to what the archive does not hold")
        target[0] = self._tops[target[0]]
        source = self._tree.peek(target[:-1])
        try:
            found = os.stat(target[-1], dir_fd=source, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EPERM, "a link to what is not a file")
            os.link(
                target[-1], name, src_dir_fd=source, dst_dir_fd=directory, follow_symlinks=False
            )
        finally:
            os.close(source)

    def _dress(self, fd: int, entry: Entry) -> None:
        self._tree.own(fd)
        for key, value in decode_attributes(entry.attributes).items():
            try:
                os.setxattr(fd, key, value)
            except OSError as error:
                # A file system without them is no reason to lose the file.
                if error.errno not in (errno.ENOTSUP, errno.ENOSPC, errno.E2BIG, errno.ERANGE):
                    raise

    def _begin(self, directory: int) -> int:
        name = _temporary_name()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=directory)
        self._temporary = (directory, name)
        return fd

    def _settle(self, name: bytes) -> None:
        assert self._temporary is not None
        directory, temporary = self._temporary
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        self._temporary = None

    def _discard(self) -> None:
        if self._temporary is not None:
            directory, name = self._temporary
            self._temporary = None
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)

    def _problem(self, name: bytes, error: OSError) -> None:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise EncampError(
                Code.DISK_FULL,
                f"The disk is full: '{printable(name)}' could not be copied.",
                "Make room and copy again.",
            ) from error
        _note(self.report.errors, f"{printable(name)}: {error.strerror or error}")


def _check_name(name: str) -> None:
    if "/" in name or not name_valid(os.fsencode(name)):
        raise EncampError(Code.USAGE, f"'{name}' cannot be the name of a file.")


def _note(names: list[str], name: str) -> None:
    if len(names) < LISTED:
        names.append(name)
    elif len(names) == LISTED:
        names.append("... and more")


def _temporary_name() -> bytes:
    return b".encamp-" + secrets.token_hex(8).encode()


def _write(fd: int, data: memoryview, at: int) -> None:
    while data:
        written = os.pwrite(fd, data, at)
        data = data[written:]
        at += written
