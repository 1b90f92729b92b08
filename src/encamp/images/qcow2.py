"""What a qcow2 file says about itself, read without letting QEMU near it.

A qcow2 file may name other files of the host, which QEMU would open and read for whoever made it.
So its header is looked at first, and what points outside is refused.
"""

from __future__ import annotations

import os
import struct

import msgspec

MAGIC = b"QFI\xfb"
HEADER = struct.Struct(">4sIQIIQIIQQIIQ")
"""Magic, version, backing file (offset, length), bits of a cluster, size, encryption, and then
where its tables are; version 3 goes on with three words of features."""
FEATURES = struct.Struct(">QQQ")

CORRUPT = 1 << 1
EXTERNAL_DATA = 1 << 2
KNOWN_FEATURES = 0b11111
"""Incompatible features: dirty, corrupt, external data, kind of compression, extended tables."""


class Qcow2(msgspec.Struct, frozen=True):
    """The header of a qcow2 file, as far as it matters."""

    version: int
    size: int
    """Of the disk it holds."""
    backing: bool
    """It names another file that holds the rest of it."""
    encrypted: bool
    features: int = 0

    @property
    def external(self) -> bool:
        """Its data is in another file."""
        return bool(self.features & EXTERNAL_DATA)

    def refusal(self) -> str | None:
        """Why it cannot be taken, if it cannot."""
        for wrong, why in (
            (self.version not in (2, 3), f"is of version {self.version} of qcow2, not 2 or 3"),
            (self.backing, "is an overlay: the rest of it is in another file"),
            (self.external, "keeps its data in another file"),
            (self.encrypted, "is encrypted"),
            (bool(self.features & CORRUPT), "is marked as damaged"),
            (bool(self.features & ~KNOWN_FEATURES), "uses features that Encamp does not know"),
            (self.size == 0, "holds an empty disk"),
        ):
            if wrong:
                return why
        return None


def read_qcow2(file: int) -> Qcow2 | None:
    """The header of an open file; None if it is no qcow2 file, or only the beginning of one."""
    head = os.pread(file, HEADER.size + FEATURES.size, 0)
    if not head.startswith(MAGIC) or len(head) < HEADER.size:
        return None
    _, version, backing, _, _, size, encryption, *_ = HEADER.unpack_from(head)
    features = 0
    if version >= 3:
        if len(head) < HEADER.size + FEATURES.size:
            return None
        features, _, _ = FEATURES.unpack_from(head, HEADER.size)
    return Qcow2(version, size, backing != 0, encryption != 0, features)
