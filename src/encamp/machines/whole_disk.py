"""Machines made from a whole disk: what they write goes to an overlay over the image."""

from __future__ import annotations

import os
from pathlib import Path

from encamp import programs
from encamp.images.qcow2 import read_qcow2
from encamp.machines.directory import MachineDirectory
from encamp.machines.hardware import Disk
from encamp.machines.storage_file import User, give
from encamp.model.errors import Code, EncampError
from encamp.model.size import MIB


class WholeDisk:
    """An overlay over one image. It has no templates: each machine boots, with a name of its own
    from the first moment on."""

    def __init__(self, image: Path) -> None:
        self.image = image

    def make(self, directory: MachineDirectory, size: int, user: User) -> None:
        # The name of what is below is no more than a note: QEMU is told when the machine starts.
        words = ("qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-u", "-b")
        programs.run(
            [*words, self.image, directory.disk, str(size)],
            purpose="making the machine's disk",
            code=Code.DISK_FULL,
        )
        give(directory.disk, user)

    def keep(self, directory: MachineDirectory, made: Path) -> tuple[str, ...]:
        raise AssertionError("there are no templates of whole disks")

    def clone(self, made: Path, directory: MachineDirectory, user: User) -> None:
        raise AssertionError("there are no templates of whole disks")

    def attach(self, directory: MachineDirectory) -> Disk:
        return Disk(overlay=True, image=self.image)


def disk_size(image: Path) -> int:
    """The size of the disk in an image, in whole MiB.

    It is also made sure that the disk names no other file of the host. Nothing that was taken in
    here does; but an image may have been made by somebody else, on another host."""
    file = os.open(image, os.O_RDONLY | os.O_CLOEXEC)
    try:
        header = read_qcow2(file)
    finally:
        os.close(file)
    why = "is no qcow2 file" if header is None else header.refusal()
    if header is None or why is not None:
        raise EncampError(
            Code.CORRUPT,
            f"The image's disk {image} {why}, so it is not booted.",
            "Remove the image, and ask who made it.",
        )
    return -(-header.size // MIB) * MIB
