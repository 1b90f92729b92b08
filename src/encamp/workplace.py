"""Directories for half-done work, which vanish whatever becomes of the process that made them.

Each has a lock that the kernel releases when the last process using the directory is gone;
what is found unlocked is left over from a process that was killed, and is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from encamp.home import Home

LOCK = ".building"
ELSEWHERE = "elsewhere"
OUTSIDE = "outside"
"""A file of this name tells that there may be something outside of the file system that must go
first. Only whoever knows how to remove that removes the file; until then the workplace stays."""


class Workplace(msgspec.Struct, frozen=True):
    """A directory to build in. Programs started here hold `lock`, so they keep it alive."""

    directory: Path
    lock: int

    def for_programs(self) -> Path:
        """A directory whose programs can be run and whose devices work; some disks forbid it."""
        flags = os.statvfs(self.directory).f_flag
        forbidden = flags & (os.ST_NOEXEC | os.ST_NODEV)
        return self.elsewhere() if forbidden else self.directory

    def elsewhere(self) -> Path:
        """A second directory, which programs can pass even if the home is closed to them."""
        import tempfile

        path = Path(tempfile.gettempdir()) / f"encamp-{self.directory.name}"
        if (self.directory / ELSEWHERE).exists():
            return path
        # Noted before it is made: whoever cleans up after us finds it from here.
        (self.directory / ELSEWHERE).write_text(str(path))
        path.mkdir(mode=0o711)
        path.chmod(0o711)
        return path


@contextmanager
def workplace(home: Home, name: str) -> Iterator[Workplace]:
    directory, lock = claim(home.cache, name)
    try:
        directory.mkdir(mode=0o711)
        yield Workplace(directory, lock)
    finally:
        remove_work(directory)
        os.close(lock)


def write_private(path: Path, text: str) -> None:
    """Write a new file that is nobody else's to read, from its first byte on."""
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text)


def lock_of(directory: Path) -> Path:
    return directory.with_name(directory.name + LOCK)


def claim(cache: Path, name: str) -> tuple[Path, int]:
    while True:
        directory = cache / f"{name}-{secrets.token_hex(6)}"
        path = lock_of(directory)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Between those two calls a cleaner may have taken the file for a left-over.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), path.stat()):
                return directory, lock
        os.close(lock)


def clear_cache(home: Home, release: Callable[[Path], None] = lambda directory: None) -> int:
    """Remove what killed processes left half done; how many such directories there were.

    Costs one directory listing when there is nothing to do. `release` is called first with each
    directory that tells of something outside.
    """
    try:
        left = [entry.path for entry in os.scandir(home.cache) if entry.name.endswith(LOCK)]
    except FileNotFoundError:
        return 0
    removed = 0
    for path in map(Path, left):
        try:
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            directory = path.with_name(path.name.removesuffix(LOCK))
            if (directory / OUTSIDE).exists():
                release(directory)
            removed += remove_work(directory)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)
    return removed


def remove_work(directory: Path) -> bool:
    """Remove a workplace, then its lock: as long as anything is left, the lock file says so.
    Whether it is gone."""
    if (directory / OUTSIDE).exists():
        return False
    note = directory / ELSEWHERE
    with contextlib.suppress(FileNotFoundError):
        elsewhere = Path(note.read_text())
        if elsewhere.name == f"encamp-{directory.name}":
            remove_tree(elsewhere)
    remove_tree(directory)
    gone = not directory.exists()
    if gone:
        lock_of(directory).unlink(missing_ok=True)
    return gone


def remove_tree(directory: Path) -> None:
    """Remove a directory, but nothing that is mounted in it, and also what other users own."""
    if not directory.exists() or mounted_below(directory):
        return
    remove_however_deep(directory)
    if directory.exists() and os.geteuid() != 0:
        from encamp import programs
        from encamp.model.errors import EncampError

        # Files of a root file system built without root belong to the user's subordinate ids.
        with contextlib.suppress(EncampError):
            programs.run(
                ["unshare", "--map-root-user", "--map-auto", "rm", "-rf", directory],
                purpose="removing a half-built image",
                cleaning=True,
            )
        remove_however_deep(directory)


def remove_however_deep(directory: Path) -> None:
    """Remove a directory as far as we may, also one that somebody has nested deeper than Python can
    follow: it must not be in the way of every command from then on."""
    # Not needed where there is nothing to remove, as at the start of nearly every command.
    import shutil

    try:
        shutil.rmtree(directory, ignore_errors=True)
    except RecursionError:
        from encamp import programs
        from encamp.model.errors import EncampError

        with contextlib.suppress(EncampError):
            programs.run(
                ["rm", "-rf", "--one-file-system", "--", directory],
                purpose="removing a deep directory",
                cleaning=True,
            )


def mounted_below(directory: Path) -> bool:
    prefix = os.fsencode(f"{directory.resolve()}/").replace(b" ", b"\\040")
    # Anybody may have mounted something under whatever name.
    with Path("/proc/self/mountinfo").open("rb") as mounts:
        return any(line.split(b" ")[4].startswith(prefix) for line in mounts)
