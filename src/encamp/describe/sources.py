"""The files that descriptions come from."""

from __future__ import annotations

import enum

import msgspec


class Level(enum.IntEnum):
    """Whose file it is. A file may build on those before it, never on those after it."""

    SHIPPED = 0
    SITE = 1
    USER = 2
    HERE = 3
    """The current directory's."""

    @property
    def trusted(self) -> bool:
        """Did an administrator write it?"""
        return self <= Level.SITE


class Source(msgspec.Struct, frozen=True, eq=False):
    """A file that was read."""

    path: str
    level: Level
    rank: int
    """Its place in the order of files."""
    directory: str
    """What relative paths in it are relative to."""
    file: str = ""
    """Where it really is: `path` is for people."""


NOWHERE = Source("default", Level.SHIPPED, -1, "/")
"""Where values come from that nobody wrote."""
