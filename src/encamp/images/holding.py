"""Holding on to an image, so that nobody removes it meanwhile. The kernel lets go of it if the
process dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from encamp.images.records import RECORD
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image


@contextmanager
def using(image: Image) -> Iterator[None]:
    """Nobody removes the image to make room, from now until its machine is written down."""
    try:
        handle = os.open(image.directory / RECORD, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        raise vanished(image) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
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
        handle = os.open(directory / RECORD, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield True
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)
