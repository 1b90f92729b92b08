"""Where a machine's writes go: one small interface, and a table of those who implement it.

What a backend makes belongs to a machine's directory and goes with it, also when recovery clears
the directory of a machine whose maker was killed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from encamp.home import Home
from encamp.machines import volumes
from encamp.machines.directory import MachineDirectory
from encamp.machines.hardware import Disk, Kept
from encamp.machines.storage_file import (
    Overlay,
    Reflink,
    SparseFile,
    can_reflink,
    check_reflink,
)
from encamp.machines.storage_file import TemplateDiskGoneError as TemplateDiskGoneError
from encamp.machines.storage_file import give as give
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.model.size import Size, format_bytes
from encamp.model.storage import Storage
from encamp.workplace import OUTSIDE

User = tuple[int, int] | None
"""Whom a machine's process runs as, if not as us."""


class Backend(Protocol):
    """One way to keep the writable disks of templates and machines."""

    def make(self, directory: MachineDirectory, size: int, user: User) -> None:
        """An empty disk for a machine that boots."""

    def keep(self, directory: MachineDirectory, made: Path) -> tuple[str, ...]:
        """Make the disk of a machine that was frozen the template's; the names of its files."""

    def clone(self, made: Path, directory: MachineDirectory, user: User) -> None:
        """A machine's own disk, from that of its template."""

    def attach(self, directory: MachineDirectory) -> Disk | None:
        """What is to stand behind the machine's drive."""


class Memory:
    """No disk: what the machine writes lives in its memory, and its guest limits it."""

    def make(self, directory: MachineDirectory, size: int, user: User) -> None:
        pass

    def keep(self, directory: MachineDirectory, made: Path) -> tuple[str, ...]:
        return ()

    def clone(self, made: Path, directory: MachineDirectory, user: User) -> None:
        pass

    def attach(self, directory: MachineDirectory) -> None:
        return None


def _lvm(home: Home) -> Backend:
    from encamp.machines.storage_lvm import ThinVolume

    return ThinVolume(lambda: _thin_pool(home))


def _thin_pool(home: Home) -> volumes.ThinPool:
    from encamp.describe.settings import load_settings
    from encamp.machines.storage_lvm import thin_pool

    return thin_pool(load_settings(), home_mark(home))


BACKENDS: dict[Storage, Callable[[Home], Backend]] = {
    Storage.RAM: lambda home: Memory(),
    Storage.SPARSE: lambda home: SparseFile(),
    Storage.QCOW2: lambda home: Overlay(),
    Storage.REFLINK: lambda home: Reflink(),
    Storage.LVM: _lvm,
}

KEPT = {
    Storage.RAM: Kept.MEMORY,
    Storage.SPARSE: Kept.FILE,
    Storage.QCOW2: Kept.FILE,
    Storage.REFLINK: Kept.FILE,
    Storage.LVM: Kept.VOLUME,
}
"""How the template is kept that machines of each kind are cloned from."""

MADE_ON = {
    Kept.MEMORY: Storage.RAM,
    Kept.FILE: Storage.SPARSE,
    Kept.VOLUME: Storage.LVM,
}
"""What a template itself writes to while it is made."""


def backend(storage: Storage, home: Home) -> Backend:
    return BACKENDS[storage](home)


def backend_of(image: Image, storage: Storage, home: Home) -> Backend:
    """What a machine of this image writes to."""
    if image.disk is None:
        return backend(storage, home)
    from encamp.machines.whole_disk import WholeDisk

    return WholeDisk(image.disk)


def choose(wanted: Storage, size: Size, home: Home) -> Storage:
    """What kind a machine gets; a clear refusal if this host cannot give it what it asks for."""
    if wanted is Storage.AUTO:
        if not size.disk:
            return Storage.RAM
        return Storage.REFLINK if can_reflink(home.templates, home.machines) else Storage.QCOW2
    if wanted is Storage.RAM:
        _check_memory(size)
        return wanted
    if not size.disk:
        raise EncampError(
            Code.USAGE,
            f"Storage '{wanted.value}' needs a size.",
            "Give one with --disk SIZE, or 'disk: SIZE' in the environment's description.",
        )
    if wanted is Storage.REFLINK:
        check_reflink(home.templates, home.machines)
    if wanted is Storage.LVM:
        _thin_pool(home)
    return wanted


def _check_memory(size: Size) -> None:
    """What is written must fit into the memory, beside what runs there."""
    if size.disk > size.memory // 2:
        raise EncampError(
            Code.USAGE,
            f"Storage 'ram' of {format_bytes(size.disk)} does not fit: it may take half of the"
            f" machine's memory, which is {format_bytes(size.memory)}.",
            "Ask for more with --memory or for less with --disk, or choose another storage.",
        )


# ── volumes ──────────────────────────────────────────────────────────────────────────────────────


def home_mark(home: Home) -> str:
    """Tells the volumes of this home from those of another."""
    return hashlib.sha256(os.fsencode(home.root)).hexdigest()[:8]


def release_volumes(home: Home, work: Path) -> None:
    """Clear away the volumes that a killed process has noted in the directories of its workplace.
    If that cannot be done now, the workplace stays, and it is tried again."""
    found = [noted for path in work.iterdir() if (noted := volumes.noted(path)) is not None]
    for group in {group for group, _ in found}:
        sweep_volumes(home, group)
    # Somebody may be making it anew, and not have come to the old volume yet.
    if not any(_is_being_made(home, name.rpartition("-")[2]) for _, name in found):
        (work / OUTSIDE).unlink(missing_ok=True)


def sweep_volumes(home: Home, group: str) -> list[str]:
    """Remove volumes that belong to nothing in this home any more; returns whose they were."""
    pool = volumes.ThinPool(group, "", home_mark(home))
    # First the volumes, then who is making a template, then what is there: in that order, nothing
    # that comes into being meanwhile is taken for an orphan.
    owners = pool.owners(volumes.volumes(group))
    known = {owner for owner in owners if _is_being_made(home, owner)}
    known.update(os.listdir(home.machines), os.listdir(home.templates))
    orphans = [owner for owner in owners if owner not in known]
    for owner in orphans:
        pool.discard(owner)
    return orphans


def _is_being_made(home: Home, key: str) -> bool:
    """Does somebody hold the lock of a template's maker?"""
    with suppress(FileNotFoundError):
        fd = os.open(home.locks / f"template-{key}.lock", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
    return False
