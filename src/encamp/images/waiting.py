"""Waiting for what another process does with images, and saying so."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from encamp import programs
from encamp.home import Home
from encamp.progress import Progress

LOOK_AGAIN = 0.2
"""Seconds between two tries for a lock that somebody else holds."""


@contextmanager
def locked(home: Home, name: str, waiting: str, progress: Progress) -> Iterator[int]:
    """Hold one of the home's locks; say so while somebody else has it.

    A program that is given the descriptor goes on holding the lock should this process be killed.
    """
    path = home.locks / f"{name}.lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                progress.update(waiting)
                if programs.STOPPING.wait(LOOK_AGAIN):
                    programs.refuse_when_stopping()
        yield handle
    finally:
        os.close(handle)
