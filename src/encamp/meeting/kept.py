"""What a detached job leaves for whoever fetches it later: its output, files and outcome.

A directory of the job's owner, in a place that only the agent can enter. Whoever reads it for the
owner trusts nothing in it: the owner's processes can write there.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from encamp.meeting.flow import Bell
from encamp.meeting.frames import (
    LARGEST,
    MOST_FILES,
    STDERR,
    STDOUT,
    Ended,
    Failed,
    file_number,
    files_out,
)
from encamp.model.errors import Code, EncampError
from encamp.model.size import format_bytes

LARGEST_KEPT = 1 << 30
"""Bytes of each output that are kept; what comes after is not."""

FETCHED = "fetched"
"""A file that is there since all others were fetched."""

_outcomes: msgspec.msgpack.Decoder[Ended | Failed] = msgspec.msgpack.Decoder(Ended | Failed)


class KeptStream:
    """A stream in a file, which is never taken out of it."""

    start = 0
    refused = False
    broken: EncampError | None = None

    def __init__(self, fd: int, *, over: bool, most: int = sys.maxsize) -> None:
        self.bell = Bell()
        self.end = os.fstat(fd).st_size
        self.over = over
        self._fd = fd
        self._most = most
        self._full = False

    async def write(self, data: bytes) -> None:
        """What is too much is left out; a disk that is full is told to the writer."""
        if self._full:
            return
        room = self._most - self.end
        if len(data) > room:
            self._full = True
            data = data[:room] + f"\n[encamp: cut after {format_bytes(self._most)}]\n".encode()
        view = memoryview(data)
        try:
            while view:
                written = os.pwrite(self._fd, view, self.end)
                self.end += written
                view = view[written:]
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
                raise
            self._full = True
            raise EncampError(
                Code.DISK_FULL,
                f"What it left could not be kept on its host: {error.strerror}.",
            ) from error
        finally:
            self.bell.ring()

    def finish(self, broken: EncampError | None = None) -> None:
        self.over = True
        self.broken = broken
        self.bell.ring()

    def read(self, at: int, most: int) -> bytes:
        found = os.pread(self._fd, most, at)
        if not found:
            raise EncampError(Code.CORRUPT, "What the job left has become shorter on its host.")
        return found

    def got(self, offset: int) -> None:
        self.bell.ring()

    def refuse(self) -> None:
        pass

    def close(self) -> None:
        os.close(self._fd)


class Kept:
    def __init__(self, directory: Path | int) -> None:
        """A directory, or one that is open: whoever has become another user since it was opened
        can still write to it."""
        if isinstance(directory, int):
            self._fd = os.dup(directory)
        else:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(directory, flags)
        self._open: list[KeptStream] = []

    def create(self, number: int) -> KeptStream:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(_name(number), flags, 0o600, dir_fd=self._fd)
        most = LARGEST_KEPT if number in (STDOUT, STDERR) else sys.maxsize
        made = KeptStream(fd, over=False, most=most)
        self._open.append(made)
        return made

    def find(self, number: int) -> KeptStream | None:
        """One that was written to its end, if it is there and is what it should be."""
        fd = self._plain(_name(number))
        if fd is None:
            return None
        found = KeptStream(fd, over=True)
        self._open.append(found)
        return found

    def files(self) -> Iterator[int]:
        """The streams of files that are there."""
        with suppress(OSError):
            for name in sorted(os.listdir(self._fd)):
                number = name.removeprefix("files-")
                if name != number and number.isdecimal() and int(number) < MOST_FILES:
                    yield files_out(int(number))

    def settle(self, final: Ended | Failed) -> None:
        """How it ended: written whole or not at all."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open("outcome.new", flags, 0o600, dir_fd=self._fd)
        try:
            view = memoryview(msgspec.msgpack.encode(final))
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename("outcome.new", "outcome", src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def note_fetched(self) -> None:
        """Its files are where they belong: it need not be kept for long. That it was so before
        stays as it is."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        with suppress(OSError):
            os.close(os.open(FETCHED, flags, 0o600, dir_fd=self._fd))

    def outcome(self) -> Ended | Failed | None:
        fd = self._plain("outcome")
        if fd is None:
            return None
        try:
            return _outcomes.decode(os.read(fd, LARGEST))
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        finally:
            os.close(fd)

    def close(self) -> None:
        for stream in self._open:
            stream.close()
        self._open.clear()
        os.close(self._fd)

    def _plain(self, name: str) -> int | None:
        """An ordinary file of the directory's own owner: not a link to what somebody else has."""
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(name, flags, dir_fd=self._fd)
        except OSError:
            return None
        found, ours = os.fstat(fd), os.fstat(self._fd)
        if stat.S_ISREG(found.st_mode) and found.st_uid == ours.st_uid and found.st_nlink == 1:
            return fd
        os.close(fd)
        return None


@contextmanager
def kept(directory: Path | int) -> Iterator[Kept]:
    opened = Kept(directory)
    try:
        yield opened
    finally:
        opened.close()


def _name(stream: int) -> str:
    if stream == STDOUT:
        return "stdout"
    if stream == STDERR:
        return "stderr"
    return f"files-{file_number(stream)}"
