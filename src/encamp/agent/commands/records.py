"""Where an agent keeps its commands: those under way, and how those ended that are over.

That is remembered for a week after the manager knows it. A request that is delivered again in that
time is recognised and not carried out again: a manager whose store was put back from a copy is told
once more how it ended. So is one that was cancelled before it ever came.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from encamp.agent.commands.directory import (
    ID,
    RESERVED,
    RESULTS,
    CommandDirectory,
    Request,
    Result,
    held,
    not_written,
    overwrite,
    write,
)
from encamp.agent.commands.left import clear_left
from encamp.home import Home
from encamp.model.command import CommandState
from encamp.model.errors import Code, EncampError

REMEMBERED = 7 * 86400.0
"""Seconds."""

MOST_REMEMBERED = 100_000


class Records:
    def __init__(self, home: Home) -> None:
        self._home = home
        self._root = home.root / "commands"
        self._under_way = self._root / "under-way"
        self._over = self._root / "over"
        self._kept = self._root / "kept"
        self._signs = self._root / "news"

    def prepare(self) -> None:
        self._home.prepare()
        try:
            for directory in (self._root, self._under_way, self._over, self._kept):
                directory.mkdir(mode=0o700, exist_ok=True)
            if not self._signs.exists():
                os.mkfifo(self._signs, 0o600)
        except OSError as error:
            raise EncampError(
                Code.DISK_FULL, f"Cannot write to {self._root}: {error.strerror}."
            ) from error

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """While this is held, no other agent looks after the commands of this home."""
        with held(self._root / "lock") as ours:
            if ours is None:
                raise EncampError(
                    Code.WRONG_STATE,
                    f"Another agent works in {self._home.root} already.",
                    "End it first; or give this one a directory of its own with ENCAMP_HOME.",
                )
            yield

    @contextmanager
    def signs(self) -> Iterator[int]:
        """Where the processes of commands give a sign that there is something to see."""
        flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self._signs, flags)
        try:
            assert stat.S_ISFIFO(os.fstat(fd).st_mode)
            yield fd
        finally:
            os.close(fd)

    def directory(self, id: str) -> CommandDirectory:
        return CommandDirectory(self._under_way / id)

    def find(self, id: str) -> CommandDirectory | None:
        """A command that is under way, or has left something for its owner."""
        if ID.fullmatch(id) is None:
            return None
        places = (self._under_way, self._kept, self._under_way)
        # It may be moved while we look.
        there = (place / id for place in places if (place / id).is_dir())
        path = next(there, None)
        return None if path is None else CommandDirectory(path)

    def under_way(self) -> list[tuple[CommandDirectory, Request]]:
        """What former agents have left, in the order it was taken in. A request that was not
        written down whole was never answered, and will come again."""
        found: list[tuple[CommandDirectory, Request]] = []
        for name in os.listdir(self._under_way):
            directory = self.directory(name)
            request = directory.read_request() if ID.fullmatch(name) else None
            if request is not None and not self.is_over(name):
                found.append((directory, request))
            else:
                self._put_away(directory)
        return sorted(found, key=lambda entry: entry[1].received)

    def is_over(self, id: str) -> bool:
        # Anybody may ask, and other paths are nobody's business.
        return ID.fullmatch(id) is not None and (self._over / id).exists()

    def settle(self, directory: CommandDirectory) -> bool:
        """Of a command that the manager knows all about, its end is enough. False: not now."""
        over = self._over / directory.id
        try:
            if directory.result.stat().st_size > RESERVED:
                _leave_value_out(directory)
            os.utime(directory.result)
            directory.result.rename(over)
        except OSError:
            if not over.exists():
                return False
        self._put_away(directory)
        return True

    def _put_away(self, directory: CommandDirectory) -> None:
        """A command is over; what it has left for its owner stays. What cannot be done now is done
        when the next agent looks."""
        with suppress(OSError):
            if directory.kept.is_dir():
                os.utime(directory.path)
                directory.path.rename(self._kept / directory.id)
            else:
                directory.remove()

    def end_of(self, id: str) -> Result:
        """How a command ended that is over."""
        try:
            return RESULTS.decode((self._over / id).read_bytes())
        except (OSError, msgspec.MsgspecError):
            return Result(state=CommandState.LOST, reason="How it ended is not remembered.")

    def end_unknown(self, id: str, result: Result) -> None:
        """Remember the end of a command that has not come yet, and will not be begun."""
        unfinished = self._over / f".{id}"
        try:
            write(unfinished, msgspec.msgpack.encode(result))
            unfinished.rename(self._over / id)
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise not_written(error, f"that command {id} is to stop") from error

    def forget(self, now: float) -> None:
        """Ids of long ago, and the oldest if there are too many; and what nobody has fetched."""
        for path in _too_old(self._over, now - REMEMBERED, MOST_REMEMBERED):
            path.unlink(missing_ok=True)
        clear_left(self._kept, now)


def _too_old(directory: Path, since: float, most: int) -> list[Path]:
    """What is older than that, or more than so many."""
    found = []
    for entry in os.scandir(directory):
        with suppress(FileNotFoundError):
            found.append((entry.stat().st_mtime, Path(entry.path)))
    newest_first = enumerate(sorted(found, reverse=True))
    return [path for place, (when, path) in newest_first if place >= most or when < since]


def _leave_value_out(directory: CommandDirectory) -> None:
    """Many are remembered: what a command returned is kept only if it is small."""
    result = directory.read_result()
    if result is not None:
        reason = f"{result.reason} What it returned is not kept.".lstrip()
        less = msgspec.structs.replace(result, value=None, reason=reason)
        overwrite(directory.result, msgspec.msgpack.encode(less))
