"""Holding on to an image, so that nobody removes it meanwhile. The kernel lets go of it if the
process dies.

Images of a host's own home can be read by every account. So the lock is of the kind that only who
may write to a file can keep from others: nobody else can hold up those who need the image.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from encamp.images.records import RECORD
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image

FLOCK = struct.Struct("hhqqi4x")
"""The kernel's `struct flock` on 64-bit Linux: type, whence, start, length, pid."""
WRITABLE = 0o644


@contextmanager
def using(image: Image) -> Iterator[None]:
    """Nobody removes the image to make room, from now until its machine is written down."""
    try:
        handle = os.open(image.directory / RECORD, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        raise vanished(image) from None
    try:
        _lock(handle, fcntl.F_OFD_SETLKW, fcntl.F_RDLCK)
        # Between those two calls it may have been removed.
        if not still_there(image.directory / RECORD, handle):
            raise vanished(image)
        yield
    finally:
        os.close(handle)


def vanished(image: Image) -> EncampError:
    return EncampError(
        Code.INPUT_MISSING,
        f"Image '{image.name or image.digest[:12]}' has just been removed.",
        "Try again: it is built or pulled anew.",
        transient=True,
    )


def still_there(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except OSError:
        return False


@contextmanager
def nobody_using(directory: Path) -> Iterator[bool]:
    """Whether no machine is just being made of an image; then none is while this is held."""
    try:
        handle = _open_to_write(directory / RECORD)
    except PermissionError:
        yield False
        return
    except OSError:
        yield True
        return
    try:
        try:
            _lock(handle, fcntl.F_OFD_SETLK, fcntl.F_WRLCK)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)


def _lock(handle: int, request: int, kind: int) -> None:
    """Of the open file, not of the process: it goes with the descriptor."""
    fcntl.fcntl(handle, request, FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0))


def _open_to_write(path: Path) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except PermissionError:
        # Records are made for reading only; their owner may change that.
        path.chmod(WRITABLE)
        return os.open(path, flags)
