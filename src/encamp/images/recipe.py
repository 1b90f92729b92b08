"""What an image is made of. Another recipe makes another image."""

from __future__ import annotations

from typing import Literal

import msgspec

BUILDER = 1
"""Raised whenever the same recipe would be built into something different."""

EPOCH = 1686355200
"""The time of every file in an image (the day Debian 12 came out): builds are reproducible."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """How to build one image from Debian's archive."""

    name: str
    kind: Literal["mini", "debian"]
    suite: str
    packages: tuple[str, ...] = ()
    """What the root file system holds beyond what Debian itself requires."""
    kernel: str = "linux-image-amd64"
    """The package that depends on the newest kernel of the suite."""
    builder: int = BUILDER

    def digest(self) -> str:
        # Not needed where images are only found by a digest somebody already has.
        import hashlib

        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()
