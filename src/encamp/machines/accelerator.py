"""Is KVM to be trusted on this host? Only a guest that answered under it can tell.

The device may be there, open, and still leave guests hanging; so one is booted, and the verdict is
kept: a good one until QEMU, the kernel or KVM's parameters change, a bad one for a while, since the
host may only have been busy. Whether an account may open the device is asked each time.
"""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from encamp import programs
from encamp.home import Home, user_name
from encamp.machines.directory import MachineDirectory
from encamp.machines.engine import Blueprint, Engine
from encamp.machines.freeze import boot_origin, greet_template
from encamp.machines.hardware import Hardware
from encamp.machines.processor import kvm_release
from encamp.machines.qemu import KVM, PROGRAM, kvm_group, launch
from encamp.model.driver import DriverName
from encamp.model.errors import EncampError
from encamp.model.image import Image
from encamp.model.size import MIB, Size
from encamp.progress import Progress
from encamp.small_file import read_small
from encamp.workplace import workplace

User = tuple[int, int] | None
"""Whom a machine's process runs as, if not as us."""

PATIENCE = 20.0
"""Seconds of processor time in which a guest has to answer under KVM. It needs about one, and ten
where the host is a virtual machine itself."""
LONGEST = 120.0
"""Seconds by the clock, for a host so busy that the guest hardly gets a processor."""
LOOK = 0.2
"""Seconds between two looks at the guest's processor time."""

DOUBT = 600.0
"""Seconds for which a first bad verdict holds. Each further one in a row holds four times as long,
so that a host on which guests always hang is not held up by it again and again."""
LONGEST_DOUBT = 86400.0

REFUSED = "failed to initialize kvm"
"""QEMU's words when it may not use KVM, or somebody else does who does not share it."""


class Verdict(msgspec.Struct, frozen=True):
    driver: DriverName
    reason: str
    evidence: str
    """What the verdict rests on; it no longer holds when this changes."""
    decided: float
    doubt: float = 0.0
    """Seconds for which it holds, if it speaks against KVM."""
    lost: bool = False
    """KVM works on this host, and the account may not use it (any more)."""


def _file(home: Home) -> Path:
    return home.root / "accelerator.json"


def _evidence() -> str:
    program = programs.find(PROGRAM).resolve().stat()
    return f"qemu {program.st_size} {program.st_mtime_ns}, {kvm_release()}"


def known(home: Home, user: User) -> Verdict | None:
    """The verdict for machines that run as this user, if one was reached and still holds."""
    kept = _kept(home)
    refusal = denied(user)
    if refusal is not None:
        lost = kept is not None and kept.driver is DriverName.KVM and KVM.exists()
        return Verdict(DriverName.EMULATION, refusal, "", time.time(), lost=lost)
    if kept is None or kept.evidence != _evidence():
        return None
    if kept.driver is not DriverName.KVM and not 0 <= time.time() - kept.decided < kept.doubt:
        return None
    return kept


def denied(user: User) -> str | None:
    """Why machines that run as this user cannot open KVM's device; None if they can."""
    if not KVM.exists():
        return f"this host has no {KVM}"
    if user is None:
        why = _open_error()
    else:
        # The device's mode is not all that counts: it may have an access control list.
        why = None if _opens_as(user) else "Permission denied"
    if why is None:
        return None
    return f"{user_name(_uid(user))} may not open {KVM} ({why}){_remedy(user)}"


def _open_error() -> str | None:
    try:
        os.close(os.open(KVM, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error.strerror
    return None


def _opens_as(user: tuple[int, int]) -> bool:
    """Open it with the rights that a machine's process gets: the user's, and one more group."""
    opening = subprocess.run(
        ["/bin/sh", "-c", ': <>"$0"', KVM],
        user=user[0],
        group=user[1],
        extra_groups=[kvm_group() or user[1]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return opening.returncode == 0


def _uid(user: User) -> int:
    return os.geteuid() if user is None else user[0]


def _remedy(user: User) -> str:
    """What an administrator can do about it."""
    group = kvm_group()
    if group == 0 or user is not None:
        return f"; 'chgrp kvm {KVM} && chmod 660 {KVM}' opens it to the group kvm"
    with suppress(KeyError):
        name, account = grp.getgrgid(group).gr_name, pwd.getpwuid(os.geteuid()).pw_name
        return f"; run 'usermod -aG {name} {account}' as root, then log in again"
    return ""


def forget(home: Home) -> None:
    _file(home).unlink(missing_ok=True)


async def decide(home: Home, image: Image, user: User, progress: Progress) -> Verdict:
    verdict = known(home, user)
    if verdict is None:
        async with home.wait_for("accelerator"):
            verdict = known(home, user) or await _try(home, image, user, progress)
    return verdict


async def _try(home: Home, image: Image, user: User, progress: Progress) -> Verdict:
    progress.update("finding out whether hardware virtualization works here")
    failure = await _boots(home, image, user)
    if failure is not None:
        return distrust(home, f"no guest answers under KVM: {failure}")
    return _keep(
        home, Verdict(DriverName.KVM, "a guest answered under it", _evidence(), time.time())
    )


def distrust(home: Home, reason: str) -> Verdict:
    """Use emulation for a while: KVM did not work just now."""
    before = _kept(home)
    doubt = DOUBT
    if (
        before is not None
        and before.driver is not DriverName.KVM
        and before.evidence == _evidence()
    ):
        doubt = min(LONGEST_DOUBT, max(DOUBT, 4 * before.doubt))
    return _keep(home, Verdict(DriverName.EMULATION, reason, _evidence(), time.time(), doubt))


def refused(error: EncampError) -> bool:
    """Did a machine's process end because KVM was refused to it?"""
    return REFUSED in (error.detail or error.sentence)


def _kept(home: Home) -> Verdict | None:
    try:
        return msgspec.json.decode(read_small(_file(home)), type=Verdict)
    except (OSError, msgspec.MsgspecError):
        return None


def _keep(home: Home, verdict: Verdict) -> Verdict:
    with home.lock("verdict"):
        written = _file(home).with_suffix(".new")
        written.write_bytes(msgspec.json.encode(verdict))
        written.rename(_file(home))
    return verdict


async def _boots(home: Home, image: Image, user: User) -> str | None:
    """Boot a guest under KVM: None if it answered, else why not."""
    layers = len(image.layers)
    hardware = Hardware(DriverName.KVM, Size(1, 256 * MIB), "none", layers)
    with workplace(home, "kvm-trial") as place:
        directory = MachineDirectory(place.directory / "machine")
        directory.make(user, 0)
        origin = boot_origin(home, image, hardware, (), place.directory)
        engine = launch(Blueprint("trial", directory, hardware, image, user), origin)
        try:
            async with asyncio.timeout(LONGEST):
                return await _answers(engine)
        except TimeoutError:
            return f"silent for {LONGEST:.0f} seconds"
        except EncampError as error:
            return (error.detail or error.sentence).splitlines()[0]
        finally:
            await engine.process.kill()
            engine.process.close()


async def _answers(engine: Engine) -> str | None:
    """Wait for the guest, as long as its process has not used up the processor time it may take.
    The clock says little: on a busy host a guest waits for its turn."""
    from psutil import NoSuchProcess, Process

    greeting = asyncio.create_task(engine.unless_ended(greet_template(engine)))
    try:
        process = Process(engine.process.pid)
        while not greeting.done():
            await asyncio.wait({greeting}, timeout=LOOK)
            with suppress(NoSuchProcess):
                used = process.cpu_times()
                if not greeting.done() and used.user + used.system > PATIENCE:
                    return f"silent for {PATIENCE:.0f} seconds of processor time"
        greeting.result()
    finally:
        greeting.cancel()
        await asyncio.wait({greeting})
    return None
