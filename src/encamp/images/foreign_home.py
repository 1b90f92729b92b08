"""What lies in somebody else's home, where anybody may have put it: nothing to wait for, no way
elsewhere, and nothing that is not that owner's."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from encamp.home import Home
from encamp.images.records import Record

LARGEST = 1 << 20
"""Bytes of a record; more is not read."""
MOST = 2000
"""Records that are looked at."""
CONTEXT = "context"
"""In a machine's directory: what it wakes up from."""
SAVED = b"QEVM"
"""How that begins, as QEMU writes it."""


class Foreign:
    def __init__(self, home: Home) -> None:
        try:
            self._owner = home.root.lstat().st_uid
        except OSError:
            self._owner = -1

    def list(self, directory: Path, name: str) -> Iterator[Path]:
        """Files of this name, one directory below."""
        # The directory itself may be removed as it is opened.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            yield from itertools.islice(directory.glob(f"*/{name}"), MOST)

    def read(self, path: Path, most: int = LARGEST) -> bytes:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not self._is_plain(os.fstat(handle)):
                return b""
            return os.read(handle, most)
        finally:
            os.close(handle)

    def is_context(self, record: Path) -> bool:
        """Is there what the machine of this record wakes up from?"""
        with contextlib.suppress(OSError):
            return self.read(record.with_name(CONTEXT), len(SAVED)) == SAVED
        return False

    def is_image(self, directory: Path, record: Record) -> bool:
        """Are the image's own files there?"""
        with contextlib.suppress(OSError):
            for file in record.files:
                status = (directory / file.name).lstat()
                if not self._is_plain(status) or status.st_size != file.size or "/" in file.name:
                    return False
            return record.digest == directory.name and bool(record.files)
        return False

    def _is_plain(self, status: os.stat_result) -> bool:
        return stat.S_ISREG(status.st_mode) and status.st_uid == self._owner
