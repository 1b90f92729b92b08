"""Machines that are QEMU processes: booted, cloned from a template, or restored from a context."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Coroutine
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from typing import TypeVar

import msgspec

from encamp import programs
from encamp.machines import sockets
from encamp.machines.engine import (
    FILE_LIMIT,
    SHARES,
    Blueprint,
    Boot,
    BootDisk,
    Clone,
    Engine,
    Origin,
    Restore,
    cancel,
    port_name,
)
from encamp.machines.hardware import (
    DISK_DRIVE,
    PORTS,
    Backing,
    Hardware,
    Kept,
    command_line,
)
from encamp.machines.monitor import monitor
from encamp.machines.process import Launch
from encamp.machines.share_server import window
from encamp.machines.tap import Tap
from encamp.model.driver import DriverName
from encamp.model.errors import Code, EncampError

PROGRAM = "qemu-system-x86_64"
MONITOR = "monitor"
AGENT = "agent"
SSH_PORT = 22
KVM = Path("/dev/kvm")
NOTHING = Path("/dev/null")
"""QEMU tries on it what the kernel can lock."""
NAME_SERVERS = Path("/etc/resolv.conf")

SYSTEM = ("/usr", "/lib", "/lib64", "/etc", "/sys/devices/system", "/dev/urandom")
"""What any of its processes may read: programs, firmware, settings (name servers are among them),
and what the kernel says of processors and memory."""

KERNEL_ARGUMENTS = (
    "console=ttyS0",
    "quiet",
    "loglevel=4",
    "panic=-1",
    "reboot=t",
    "tsc=reliable",
    "random.trust_cpu=on",
    "mitigations=off",
    "apparmor=0",
    "init_on_alloc=0",
    "nowatchdog",
    "noautogroup",
    "psi=0",
    "cryptomgr.notests",
)
"""What guards tenants from each other is left out: a machine has one, and the host's kernel guards
the host. What is measured or tested for nobody is left out too."""

STOPPED = {
    "internal-error": "KVM could not go on with its processor (internal-error)",
    "io-error": "a drive of it could not be read or written (io-error)",
}
"""States of QEMU in which a machine stands still and nobody resumes it."""

T = TypeVar("T")


class Qemu(Engine):
    """A machine that is a QEMU process."""

    def connect_monitor(self) -> socket.socket:
        return sockets.connect(self.directory.path, MONITOR)

    async def pause(self) -> None:
        async with monitor(self.connect_monitor()) as control:
            await control.pause()

    async def resume(self) -> None:
        async with monitor(self.connect_monitor()) as control:
            await control.resume()

    async def press_power_button(self) -> None:
        async with monitor(self.connect_monitor()) as control:
            await control.power_down()

    async def forward(self, port: int) -> int:
        async with monitor(self.connect_monitor()) as control:
            return await control.forward(port)

    async def status(self) -> str:
        async with monitor(self.connect_monitor()) as control:
            return await control.status()

    async def stopped(self) -> str:
        try:
            return STOPPED.get(await self.status(), "")
        except EncampError:
            return ""  # QEMU is busy with somebody else, or has just ended.

    async def check_accepted(self) -> None:
        await self.status()

    async def failed_writes(self) -> int:
        async with monitor(self.connect_monitor()) as control:
            return await control.failed_writes(DISK_DRIVE)

    async def save(self, target: Path, *, memory_is_mapped: bool) -> None:
        """Write the machine's state; it stands still afterwards, and goes on if that fails.

        Saved as it runs, it runs again as soon as it is loaded, which spares a clone a step."""
        # Through a pipe: we write the file, so QEMU's own limit on files can stay low.
        reading, writing = (FileIO(fd, mode) for fd, mode in zip(os.pipe(), "rw", strict=True))
        copying = asyncio.create_task(asyncio.to_thread(_copy_to_file, reading, target))
        # Also if no thread could begin: QEMU would wait for ever for somebody to read.
        copying.add_done_callback(lambda _: reading.close())
        try:
            async with monitor(self.connect_monitor()) as control:
                try:
                    await control.full_speed()
                    await control.hand_over(writing.fileno())
                    writing.close()
                    await _until_one_fails(copying, control.save(memory_is_mapped=memory_is_mapped))
                except BaseException:
                    await control.give_up()
                    await control.resume()
                    raise
        except BaseException as error:
            writing.close()
            await asyncio.wait({copying})
            target.unlink(missing_ok=True)
            # QEMU saw only that its pipe broke; whoever wrote the file knows why.
            why = copying.exception() if isinstance(error, EncampError) else error
            match why:
                case OSError():
                    raise EncampError(
                        Code.DISK_FULL,
                        f"The machine's state could not be written to {target}: {why.strerror}.",
                        "Make room and try again; the machine goes on as before.",
                    ) from why
                case RuntimeError():  # There can be no more threads.
                    raise EncampError(
                        Code.NO_ROOM,
                        f"The machine's state could not be written to {target}: {why}.",
                        "Try again later; the machine goes on as before.",
                        transient=True,
                    ) from why
            raise


def _copy_to_file(source: FileIO, target: Path) -> None:
    with source, target.open("xb") as file:
        target.chmod(0o600)
        while piece := source.read(1 << 20):
            file.write(piece)


async def _until_one_fails(copying: asyncio.Task[None], work: Coroutine[object, object, T]) -> None:
    """Wait for both, or until one of them fails."""
    saving = asyncio.create_task(work)
    try:
        await asyncio.wait({copying, saving}, return_when=asyncio.FIRST_EXCEPTION)
        for task in (copying, saving):
            if task.done():
                task.result()
    finally:
        await cancel(saving)


def launch(blueprint: Blueprint, origin: Origin) -> Qemu:
    """Start the process. It is not awake yet: see `wake`."""
    directory, hardware = blueprint.directory, blueprint.hardware
    plan = Launch(directory=directory.run, lock=directory.lock, log=directory.log)
    plan.tied = blueprint.tied
    plan.shielded = blueprint.shielded
    plan.user = blueprint.user
    if hardware.driver is DriverName.KVM:
        plan.group = kvm_group()
    plan.file_limit = _file_limit(hardware)
    with ExitStack() as held:

        def opened(path: Path, flags: int) -> int:
            fd = os.open(path, flags | os.O_CLOEXEC)
            held.callback(os.close, fd)
            plan.descriptors.append(fd)
            return fd

        def inherit(path: Path, flags: int = os.O_RDONLY) -> str:
            return f"/proc/self/fd/{opened(path, flags)}"

        def listen(name: str) -> int:
            listener = held.enter_context(sockets.listen(directory.path, name))
            plan.descriptors.append(listener.fileno())
            return listener.fileno()

        backing = Backing(
            name=blueprint.name,
            roots=[inherit(layer) for layer in blueprint.image.layers],
            memory="memory-backend-ram",
            monitor=listen(MONITOR),
            ports=[listen(port_name(number)) for number in range(PORTS)],
            shares=listen(SHARES),
        )
        backing.disk = blueprint.disk
        if backing.disk is not None and (device := backing.disk.device) is not None:
            # One for each way in which QEMU opens a disk in the course of its life.
            descriptors = tuple(opened(device, way) for way in (os.O_RDWR, os.O_RDONLY))
            backing.disk = msgspec.structs.replace(backing.disk, descriptors=descriptors)
        if backing.disk is not None and backing.disk.overlay:
            base = inherit(backing.disk.image or directory.base)
            backing.disk = msgspec.structs.replace(backing.disk, base=base)
        _confine(plan, blueprint)
        if hardware.network == "bridge":
            tap = blueprint.tap or held.enter_context(Tap.loose())
            backing.tap = tap.descriptor
            plan.descriptors.append(tap.descriptor)
        if hardware.whole:
            backing.agent = listen(AGENT)
            backing.seed = inherit(directory.seed)
        else:
            seen = blueprint.window
            if seen is None:
                seen = held.enter_context(window())
            plan.descriptors.append(seen)
            backing.window = f"/proc/self/fd/{seen}"
        if isinstance(origin, Boot) and origin.memory is not None:
            path = inherit(origin.memory, os.O_RDWR)
            backing.memory = f"memory-backend-file,share=on,mem-path={path}"
        elif isinstance(origin, Clone):
            # QEMU would open it for writing; the launcher's library sees to it that it does not.
            path = inherit(origin.memory)
            backing.memory = f"memory-backend-file,share=off,mem-path={path}"
        words = command_line(programs.find(PROGRAM), hardware, backing)
        match origin:
            case Boot():
                words += ["-kernel", inherit(origin.kernel)]
                words += ["-initrd", inherit(origin.initramfs)]
                words += ["-append", " ".join((*KERNEL_ARGUMENTS, *origin.arguments))]
            case BootDisk():
                pass
            case Clone() | Restore():
                words += ["-incoming", "defer"]
        return Qemu(directory, plan.start(words))


async def wake(engine: Qemu, origin: Origin) -> None:
    """Load the state of a machine that was not booted. A clone runs then; a restored machine
    stands still as it was saved, until `resume`: there is no way back once it has run."""
    if isinstance(origin, Boot | BootDisk):
        return
    mapped = isinstance(origin, Clone)
    source = origin.state if isinstance(origin, Clone) else origin.context
    # The state must be read from its beginning by this process alone: an open file of its own.
    state = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        async with monitor(engine.connect_monitor()) as control:
            status = await control.load(state, memory_is_mapped=mapped)
            if mapped and status != "running":
                await control.resume()
    finally:
        os.close(state)


def _confine(plan: Launch, blueprint: Blueprint) -> None:
    """What the process may reach on the host. Which files, sockets and devices an administrator's
    own words of its command line need, only the administrator knows."""
    hardware = blueprint.hardware
    if hardware.words:
        return
    plan.confined = True
    plan.sockets = "internet" if hardware.network == "user" else "none"
    program = programs.find(PROGRAM).resolve()
    plan.readable += [*SYSTEM, program]
    if not program.is_relative_to("/usr"):
        prefix = program.parent.parent
        plan.readable += [prefix / "lib", prefix / "lib64", prefix / "share" / "qemu"]
    plan.devices.append(NOTHING)
    if hardware.driver is DriverName.KVM:
        plan.devices.append(KVM)
    if hardware.network == "user":
        # The directory: whoever changes it puts a new file in the place of the old one.
        plan.readable.append(NAME_SERVERS.resolve().parent)


def kvm_group() -> int:
    """The group that may use KVM, as distributions arrange it; 0 if there is none."""
    try:
        found = KVM.stat()
    except OSError:
        return 0
    return found.st_gid if found.st_mode & stat.S_IRGRP and found.st_mode & stat.S_IWGRP else 0


def _file_limit(hardware: Hardware) -> int:
    disk = hardware.size.disk if hardware.kept is Kept.FILE else 0
    # A disk in a file needs a little more than its size for the file's own tables.
    return FILE_LIMIT + (disk + disk // 64 if disk else 0)
