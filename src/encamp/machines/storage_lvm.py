"""Disks in thin volumes: a template's is a volume, a machine's a snapshot of it.

LVM enforces the size. QEMU never gets the right to open a device: it inherits the open one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from encamp.machines import volumes
from encamp.machines.directory import MachineDirectory
from encamp.machines.hardware import Disk
from encamp.machines.storage_file import TemplateDiskGoneError, format_disk
from encamp.machines.volumes import ThinPool, Volume
from encamp.model.errors import Code, EncampError
from encamp.model.settings import Settings
from encamp.model.size import MIB, format_bytes

User = tuple[int, int] | None

SETTINGS_HINT = "An administrator names it in settings.yaml: 'volume_group: NAME'."


class ThinVolume:
    """A thin volume; what it belongs to is named by its directory: an id or a template's key."""

    def __init__(self, find_pool: Callable[[], ThinPool]) -> None:
        self._find_pool = find_pool

    @cached_property
    def pool(self) -> ThinPool:
        """Where new volumes are made. What was made before stays where it is."""
        return self._find_pool()

    def make(self, directory: MachineDirectory, size: int, user: User) -> None:
        name = self._begin(directory, size, volumes.volumes(self.pool.group))
        self.pool.create(name, size)
        format_disk(volumes.device(self.pool.group, name))

    def keep(self, directory: MachineDirectory, made: Path) -> tuple[str, ...]:
        group, name = self._noted(directory.path)
        self.pool.freeze(name)
        volumes.note(made, group, name)
        volumes.forget(directory.path)
        return ()

    def clone(self, made: Path, directory: MachineDirectory, user: User) -> None:
        _, origin = self._noted(made)
        found = volumes.volumes(self.pool.group)
        size = next((volume.size for volume in found if volume.name == origin), None)
        if size is None:
            raise TemplateDiskGoneError(origin)
        name = self._begin(directory, size, found)
        self.pool.snapshot(origin, name)

    def attach(self, directory: MachineDirectory) -> Disk:
        group, name = self._noted(directory.path)
        volumes.activate(group, name)
        return Disk(device=volumes.device(group, name))

    def _begin(self, directory: MachineDirectory, size: int, found: list[Volume]) -> str:
        """Write down the volume that is about to be made; remove what has its name."""
        free = self.pool.free(found)
        if size > free:
            raise EncampError(
                Code.NO_ROOM,
                f"Not enough disk: the machine wants {format_bytes(size)} and the thin pool"
                f" {self.pool.group}/{self.pool.pool} has {format_bytes(free // MIB * MIB)} free.",
                "Ask for less with --disk.",
                transient=True,
            )
        owner = directory.path.name
        name = self.pool.name(owner)
        if owner in self.pool.owners(found):
            # Only a template's maker that was killed can have left it: ids are never used twice.
            volumes.remove(self.pool.group, name)
        volumes.note(directory.path, self.pool.group, name)
        return name

    def _noted(self, directory: Path) -> tuple[str, str]:
        found = volumes.noted(directory)
        if found is None:
            raise TemplateDiskGoneError(directory)
        return found


def thin_pool(settings: Settings, home: str) -> ThinPool:
    """The pool that the site has chosen; a clear refusal if there is none or it cannot be used."""
    group = settings.volume_group
    if group is None:
        raise EncampError(
            Code.CONFIGURATION,
            "Storage 'lvm' needs a volume group, and none is configured.",
            SETTINGS_HINT,
        )
    if os.geteuid() != 0:
        raise EncampError(
            Code.NOT_PERMITTED,
            "Storage 'lvm' is for machines of root: only root may make volumes.",
            "Choose another, such as --storage qcow2.",
        )
    pool = settings.thin_pool
    if pool is None:
        pools = [v.name for v in volumes.volumes(group) if v.kind == "thin-pool"]
        if len(pools) != 1:
            several = f"has {len(pools)} thin pools ({', '.join(pools)})" if pools else "has none"
            raise EncampError(
                Code.CONFIGURATION,
                f"Storage 'lvm' needs a thin pool, and the volume group '{group}' {several}.",
                "An administrator names one in settings.yaml: 'thin_pool: NAME'.",
            )
        pool = pools[0]
    return ThinPool(group, pool, home)
