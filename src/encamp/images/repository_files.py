"""What a repository is made of, wherever it lies: files that are read, written and replaced.

A directory and an HTTP server offer the same; `Medium` is what Encamp asks of either.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from encamp.images.transfer_meter import Meter
from encamp.progress import Progress


class Incoming(Protocol):
    """A file of a repository, being read."""

    @property
    def start(self) -> int:
        """Where in the file it begins: what was asked for, or 0 if that could not be done."""

    @property
    def size(self) -> int | None:
        """The whole file's, if it is known."""

    @property
    def validator(self) -> str:
        """Changes whenever the file does; may be empty."""

    def read(self, most: int) -> bytes:
        """What comes next, as soon as there is any; nothing at the end."""


class Medium(Protocol):
    where: str
    """What people call it."""

    def open(
        self, path: str, offset: int = 0, validator: str = ""
    ) -> AbstractContextManager[Incoming | None]:
        """Read a file from an offset on, unless it has changed; None if there is no such file."""

    def read(self, path: str, limit: int) -> bytes | None:
        """A small file's content."""

    def size(self, path: str) -> int | None:
        """A file's size; None if there is no such file."""

    def write(self, path: str, data: bytes) -> None:
        """Put a small file in place, whole or not at all."""

    def send(self, path: str, source: Path, meter: Meter) -> None:
        """Put a big one in place, whole or not at all."""

    def remove(self, path: str) -> None: ...

    def room(self) -> int | None:
        """How many bytes more it can take, if that is known."""

    def sending(self, progress: Progress) -> AbstractContextManager[bool]:
        """While files are sent; tells whether nobody else can send any meanwhile."""

    def changing(self, progress: Progress) -> AbstractContextManager[None]:
        """Nobody else changes the lists of the repository meanwhile."""


def read_all(incoming: Incoming, limit: int) -> bytes:
    """A small file's content; one byte more than the limit if it is larger."""
    data = bytearray()
    while len(data) <= limit and (piece := incoming.read(limit + 1 - len(data))):
        data += piece
    return bytes(data)
