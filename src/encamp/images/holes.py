"""Writing files without their zeros: a hole takes no room, and reads the same."""

from __future__ import annotations

import os
from typing import BinaryIO

BLOCK = 64 << 10
ZEROS = bytes(BLOCK)


def write_sparse(out: BinaryIO, data: bytes) -> None:
    """Write what was read, but only go past those parts of it that are all zero. Whoever is done
    calls `end_sparse`: a hole at the end is no part of the file before."""
    for at in range(0, len(data), BLOCK):
        block = data[at : at + BLOCK]
        if block == (ZEROS if len(block) == BLOCK else bytes(len(block))):
            out.seek(len(block), os.SEEK_CUR)
        else:
            out.write(block)


def end_sparse(out: BinaryIO) -> None:
    out.truncate()
