"""What commands have left for their owners on a host: how long that stays, and what goes first if
there is too much of it."""

from __future__ import annotations

import heapq
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from encamp.agent.commands.directory import CommandDirectory
from encamp.meeting.kept import FETCHED

KEPT_FOR = 7 * 86400.0
"""Seconds for which what a command has left for its owner is kept, if nobody fetches it."""

FETCHED_FOR = 3600.0
"""Seconds for which it is kept if its files were fetched: for a second look."""

MOST_KEPT = 10_000
LARGEST_KEPT = 0.25
"""Of the file system: more than that is not kept. What was fetched goes first; then, of whoever has
most, the oldest."""


def clear_left(directory: Path, now: float) -> None:
    """What nobody has fetched for long, what was fetched a while ago, and what is too much."""
    for left in _left(directory):
        if left.since < now - KEPT_FOR or 0 < left.fetched < now - FETCHED_FOR:
            left.remove()
    room = int(shutil.disk_usage(directory).total * LARGEST_KEPT)
    for left in _too_much(_left(directory), room, MOST_KEPT):
        left.remove()


class Left:
    """What a command has left for its owner."""

    def __init__(self, path: Path) -> None:
        self._directory = CommandDirectory(path)
        found = path.lstat()
        self.since = found.st_mtime
        self.owner = found.st_uid
        self.fetched = 0.0
        """Since when its owner has the files; 0: nobody has told."""
        with suppress(OSError):
            self.owner = self._directory.kept.lstat().st_uid
            self.fetched = (self._directory.kept / FETCHED).lstat().st_mtime
        self.size = 0
        """Bytes of the disk, once it was measured."""

    def measure(self) -> None:
        self.size = _blocks(self._directory.path) + sum(
            _blocks(path) for path in _inside(self._directory.path)
        )

    def remove(self) -> None:
        with suppress(OSError):
            self._directory.remove()


def _left(directory: Path) -> list[Left]:
    """The newest first."""
    found = []
    for entry in os.scandir(directory):
        with suppress(OSError):
            found.append(Left(Path(entry.path)))
    return sorted(found, key=lambda left: left.since, reverse=True)


def _too_much(found: list[Left], room: int, most: int) -> list[Left]:
    """What there is no room for."""
    for left in found:
        left.measure()
    size, count = sum(left.size for left in found), len(found)
    going: set[Left] = set()
    for left in sorted(found, key=lambda left: left.fetched):
        if left.fetched and (size > room or count > most):
            going.add(left)
            size, count = size - left.size, count - 1
    # So that nobody's makes others' go, of whoever has most.
    owned: dict[int, list[Left]] = {}
    for left in found:
        if left not in going:
            owned.setdefault(left.owner, []).append(left)
    surplus = [
        *_surplus({uid: [left.size for left in all_] for uid, all_ in owned.items()}, room),
        *_surplus({uid: [1] * len(all_) for uid, all_ in owned.items()}, most),
    ]
    return [*going, *(left for uid, first in surplus for left in owned[uid][first:])]


def _surplus(sizes: dict[int, list[int]], room: int) -> list[tuple[int, int]]:
    """For each owner, from which one on there is no room; taken from who has most, one by one."""
    totals = {uid: sum(all_) for uid, all_ in sizes.items()}
    kept = {uid: len(all_) for uid, all_ in sizes.items()}
    total = sum(totals.values())
    largest = [(-size, uid) for uid, size in totals.items()]
    heapq.heapify(largest)
    while total > room and largest:
        _, uid = heapq.heappop(largest)
        kept[uid] -= 1
        size = sizes[uid][kept[uid]]
        total -= size
        totals[uid] -= size
        if kept[uid]:
            heapq.heappush(largest, (-totals[uid], uid))
    return [(uid, first) for uid, first in kept.items() if first < len(sizes[uid])]


def _inside(directory: Path) -> Iterator[str]:
    """All that is in there, however deep its owner has nested it; not what is removed meanwhile."""
    unseen = [str(directory)]
    while unseen:
        with suppress(OSError), os.scandir(unseen.pop()) as entries:
            for entry in entries:
                yield entry.path
                if entry.is_dir(follow_symlinks=False):
                    unseen.append(entry.path)


def _blocks(path: Path | str) -> int:
    try:
        return os.lstat(path).st_blocks * 512
    except OSError:
        return 0
