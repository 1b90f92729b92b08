"""Waiting for what another process does with images, and saying so."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from encamp import programs
from encamp.home import Home
from encamp.progress import Progress

LOOK_AGAIN = 0.2
"""Seconds between two tries for a lock that somebody else holds."""

Waiting = str | Callable[[], tuple[str, float | None]]
"""What to say meanwhile; or what to ask for that, and for how far the other one is."""


@contextmanager
def locked(home: Home, name: str, waiting: Waiting, progress: Progress) -> Iterator[int]:
    """Hold one of the home's locks; say so while somebody else has it.

    A program that is given the descriptor goes on holding the lock should this process be killed.
    """
    handle = _take(home.locks / f"{name}.lock", waiting, progress)
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def held_by_nobody(home: Home, name: str) -> Iterator[bool]:
    """Hold one of the home's locks if nobody else does; whether that is so."""
    path = home.locks / f"{name}.lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = os.path.samestat(os.fstat(handle), path.stat())
        except (BlockingIOError, FileNotFoundError):
            ours = False
        yield ours
    finally:
        os.close(handle)


def _take(path: Path, waiting: Waiting, progress: Progress) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    said, fraction = (waiting, None) if isinstance(waiting, str) else waiting()
                    progress.update(said, fraction)
                    if programs.STOPPING.wait(LOOK_AGAIN):
                        programs.refuse_when_stopping()
            # Between opening and locking, somebody may have cleared the lock's file away.
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
