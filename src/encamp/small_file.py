"""Reading records that may be somebody else's work: a file that is none, or is larger than any
record, must not keep whoever reads it busy, or fill its memory."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

LARGEST = 16 << 20


def read_small(path: Path, most: int = LARGEST) -> bytes:
    """Raises OSError also for what is no plain file, or too large."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no plain file", os.fspath(path))
        if found.st_size > most:
            raise OSError(errno.EFBIG, "it is too large for a record", os.fspath(path))
        with os.fdopen(file, "rb", closefd=False) as reader:
            return reader.read(most)
    finally:
        os.close(file)
