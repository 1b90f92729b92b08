"""Directories for half-done work, which vanish whatever becomes of the process that made them.

Each has a lock that the kernel releases when the last process using the directory is gone;
what is found unlocked is left over from a process that was killed, and is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from encamp.home import Home

LOCK = ".building"
ELSEWHERE = "elsewhere"


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
        """A second directory, which other users can enter even if the home is closed to them."""
        import tempfile

        path = Path(tempfile.gettempdir()) / f"encamp-{self.directory.name}"
        # Noted before it is made: whoever cleans up after us finds it from here.
        (self.directory / ELSEWHERE).write_text(str(path))
        path.mkdir(mode=0o755)
        path.chmod(0o755)
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


def clear_cache(home: Home) -> int:
    """Remove what killed processes left half done; how many such directories there were.

    Costs one directory listing when there is nothing to do.
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
            remove_work(path.with_name(path.name.removesuffix(LOCK)))
            removed += 1
        except BlockingIOError:
            pass
        finally:
            os.close(lock)
    return removed


def remove_work(directory: Path) -> None:
    """Remove a workplace, then its lock: as long as anything is left, the lock file says so."""
    note = directory / ELSEWHERE
    with contextlib.suppress(FileNotFoundError):
        elsewhere = Path(note.read_text())
        if elsewhere.name == f"encamp-{directory.name}":
            remove_tree(elsewhere)
    remove_tree(directory)
    if not directory.exists():
        lock_of(directory).unlink(missing_ok=True)


def remove_tree(directory: Path) -> None:
    """Remove a directory, but nothing that is mounted in it, and also what other users own."""
    if not directory.exists() or mounted_below(directory):
        return
    # Not needed where there is nothing to remove, as at the start of nearly every command.
    import shutil

    from encamp import programs
    from encamp.model.errors import EncampError

    shutil.rmtree(directory, ignore_errors=True)
    if directory.exists() and os.geteuid() != 0:
        # Files of a root file system built without root belong to the user's subordinate ids.
        with contextlib.suppress(EncampError):
            programs.run(
                ["mmdebstrap", "--unshare-helper", "rm", "-rf", directory],
                purpose="removing a half-built image",
                cleaning=True,
            )
        shutil.rmtree(directory, ignore_errors=True)


def mounted_below(directory: Path) -> bool:
    prefix = f"{directory.resolve()}/".replace(" ", "\\040")
    with Path("/proc/self/mountinfo").open() as mounts:
        return any(line.split(" ")[4].startswith(prefix) for line in mounts)
