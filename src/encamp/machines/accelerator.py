"""Is KVM to be trusted on this host? Only a guest that answered under it can tell.

The device may be there, open, and still leave guests hanging; so one is booted, once, and the
verdict is kept until QEMU, the kernel or the user changes.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import msgspec

from encamp import programs
from encamp.home import Home
from encamp.machines.directory import MachineDirectory
from encamp.machines.freeze import boot_origin, greet_template
from encamp.machines.hardware import SHARE_SLOTS, Hardware
from encamp.machines.qemu import KVM, PROGRAM, Blueprint, launch
from encamp.model.errors import EncampError
from encamp.model.image import Image
from encamp.model.size import MIB, Size
from encamp.progress import Progress
from encamp.small_file import read_small
from encamp.workplace import workplace

PATIENCE = 10.0
"""Seconds a guest has to answer under KVM, where it needs about one."""


class Verdict(msgspec.Struct, frozen=True):
    accelerator: str
    reason: str
    evidence: str
    """What the verdict rests on; it no longer holds when this changes."""
    decided: float


def _file(home: Home) -> Path:
    return home.root / "accelerator.json"


def _evidence(user: tuple[int, int] | None) -> str:
    program = programs.find(PROGRAM).resolve().stat()
    try:
        device = KVM.stat()
        access = f"{device.st_mode:o} {device.st_uid}:{device.st_gid}"
    except OSError:
        access = "none"
    who = user or (os.geteuid(), os.getegid())
    return f"qemu {program.st_size} {program.st_mtime_ns}, {os.uname().release}, {who}, {access}"


def known(home: Home, user: tuple[int, int] | None) -> Verdict | None:
    """The verdict, if one was reached and still holds."""
    try:
        verdict = msgspec.json.decode(read_small(_file(home)), type=Verdict)
    except (OSError, msgspec.MsgspecError):
        return None
    return verdict if verdict.evidence == _evidence(user) else None


def forget(home: Home) -> None:
    _file(home).unlink(missing_ok=True)


async def decide(
    home: Home, image: Image, user: tuple[int, int] | None, progress: Progress
) -> Verdict:
    verdict = known(home, user)
    if verdict is None:
        async with home.wait_for("accelerator"):
            verdict = known(home, user) or await _try(home, image, user, progress)
    return verdict


async def _try(
    home: Home, image: Image, user: tuple[int, int] | None, progress: Progress
) -> Verdict:
    accelerator, reason = "tcg", f"this host has no {KVM}"
    if KVM.exists():
        progress.update("finding out whether hardware virtualization works here (once)")
        failure = await _boots(home, image, user)
        if failure is None:
            accelerator, reason = "kvm", "a guest answered under it"
        else:
            reason = f"no guest answers under KVM: {failure}"
    verdict = Verdict(accelerator, reason, _evidence(user), time.time())
    written = _file(home).with_suffix(".new")
    written.write_bytes(msgspec.json.encode(verdict))
    written.rename(_file(home))
    return verdict


async def _boots(home: Home, image: Image, user: tuple[int, int] | None) -> str | None:
    """Boot a guest under KVM: None if it answered, else why not."""
    layers = len(image.layers)
    hardware = Hardware("kvm", Size(1, 256 * MIB), SHARE_SLOTS[0], "none", layers)
    with workplace(home, "kvm-trial") as place:
        directory = MachineDirectory(place.directory / "machine")
        directory.make(user, 0)
        origin = boot_origin(home, image, hardware, (), place.directory)
        engine = launch(Blueprint("trial", directory, hardware, image, user), origin)
        try:
            async with asyncio.timeout(PATIENCE):
                await engine.unless_ended(greet_template(engine))
        except TimeoutError:
            return f"silent for {PATIENCE:.0f} seconds"
        except EncampError as error:
            return (error.detail or error.sentence).splitlines()[0]
        finally:
            await engine.process.kill()
            engine.process.close()
    return None
