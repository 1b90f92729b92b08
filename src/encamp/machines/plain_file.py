"""Files in a directory where a machine's process works, opened as what they should be.

A process gone bad can put anything in their place: a link to a file of ours, a pipe nobody writes
to. Whoever opens one of them opens it here, and then works on what is open, not on its name.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class NotPlainError(OSError):
    """Something stands where a file should be."""


@contextmanager
def plain_file(path: Path, *, sole: bool = False) -> Iterator[int]:
    """A regular file, open for reading; never what a link leads to, and never waited for.

    `sole`: it must have no other name, under which it might be somebody else's file."""
    fd = os.open(path, FLAGS)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise NotPlainError(f"{path} is not a file")
        if sole and found.st_nlink != 1:
            raise NotPlainError(f"{path} has another name elsewhere")
        yield fd
    finally:
        os.close(fd)
