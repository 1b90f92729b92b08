"""The initramfs that brings the guest program into a machine: a cpio archive, the same for the
same program, to be put after the one that holds the image's kernel modules."""

from __future__ import annotations

import stat
from pathlib import Path

from encamp.cpio import Entry, archive, directory

DIRECTORIES = ("dev", "proc", "sys", "lower", "writable", "machine")
CONSOLE = (5, 1)
"""Without its console the kernel starts /init with no standard streams at all."""


def guest_initramfs(guest_program: Path) -> bytes:
    """An archive with the guest program as /init."""
    return archive(
        [
            *map(directory, DIRECTORIES),
            Entry("dev/console", mode=stat.S_IFCHR | 0o600, device=CONSOLE),
            Entry("init", guest_program.read_bytes(), stat.S_IFREG | 0o755),
        ]
    )
