"""Directories of the host that an archive is unpacked into.

They are entered one component at a time, never through a symbolic link, and get their own modes
and times only when they are left. Only those that lead to the present place are held open.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec

from encamp.guest.archive_format import DEPTH_LIMIT

ENTER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _Level(msgspec.Struct):
    fd: int
    name: bytes
    mode: int | None = None
    """To be given when it is left."""
    mtime_ns: int | None = None


class Tree:
    """`on_problem` hears of directories that could not get their mode or time when left."""

    def __init__(
        self,
        destination: Path,
        owner: tuple[int, int] | None,
        on_problem: Callable[[bytes, OSError], None],
    ) -> None:
        self._owner = owner if os.geteuid() == 0 else None
        self._on_problem = on_problem
        destination.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        self._levels = [_Level(os.open(destination, flags), b"")]

    @property
    def here(self) -> int:
        return self._levels[-1].fd

    def own(self, fd: int) -> None:
        if self._owner is not None:
            os.chown(fd, *self._owner)

    def own_link(self, name: bytes, directory: int) -> None:
        if self._owner is not None:
            os.chown(name, *self._owner, dir_fd=directory, follow_symlinks=False)

    def enter(self, parts: list[bytes]) -> int:
        """Go to this directory, making what is missing; its descriptor stays the tree's."""
        same = 0
        for level, part in zip(self._levels[1:], parts, strict=False):
            if level.name != part:
                break
            same += 1
        while len(self._levels) - 1 > same:
            self._leave()
        for part in parts[same:]:
            self._make_one(part, 0o755)
        return self.here

    def make(self, parts: list[bytes], mode: int, mtime_ns: int) -> int:
        """Make (or take) this directory, which shall have this mode and time in the end."""
        self.enter(parts[:-1])
        self._make_one(parts[-1], 0o700)
        level = self._levels[-1]
        level.mode, level.mtime_ns = mode, mtime_ns
        return level.fd

    def peek(self, parts: list[bytes]) -> int:
        """Open a directory without going there; the descriptor is the caller's."""
        fd = os.dup(self._levels[0].fd)
        for part in parts:
            above = fd
            try:
                fd = os.open(part, ENTER, dir_fd=above)
            finally:
                os.close(above)
        return fd

    def close(self) -> None:
        while self._levels:
            self._leave()

    def _make_one(self, name: bytes, mode: int) -> None:
        if len(self._levels) > DEPTH_LIMIT:
            raise OSError(errno.ELOOP, "it lies too deep in its directory")
        try:
            os.mkdir(name, mode, dir_fd=self.here)
            made = True
        except FileExistsError:
            made = False
        try:
            level = _Level(os.open(name, ENTER, dir_fd=self.here), name)
        except PermissionError:
            level = self._widen(name)
        self._levels.append(level)
        if made:
            self.own(level.fd)
        status = os.fstat(level.fd)
        if status.st_uid == os.geteuid() and status.st_mode & 0o700 != 0o700:
            # Its owner may lack the right to write to it; he gets it for as long as we are here.
            level.mode = stat.S_IMODE(status.st_mode)
            os.fchmod(level.fd, level.mode | 0o700)

    def _widen(self, name: bytes) -> _Level:
        """Open a directory that its owner may not even read."""
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.here)
        try:
            status = os.fstat(handle)
            if not stat.S_ISDIR(status.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            # Through the handle, which cannot be exchanged for a link in between.
            mode = stat.S_IMODE(status.st_mode)
            Path(f"/proc/self/fd/{handle}").chmod(mode | 0o700)
            return _Level(os.open(name, ENTER, dir_fd=self.here), name, mode)
        finally:
            os.close(handle)

    def _leave(self) -> None:
        level = self._levels.pop()
        try:
            if level.mode is not None:
                os.fchmod(level.fd, level.mode)
            if level.mtime_ns is not None:
                os.utime(level.fd, ns=(level.mtime_ns, level.mtime_ns))
        except OSError as error:
            # Told apart from the entry that happens to be next.
            self._on_problem(level.name, error)
        finally:
            os.close(level.fd)
