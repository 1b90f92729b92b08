"""Bringing a machine's QEMU to life: booted, cloned from a template, or restored from a context."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path
from typing import TypeVar

import msgspec

from encamp import programs
from encamp.machines import sockets
from encamp.machines.directory import MachineDirectory
from encamp.machines.hardware import (
    DISK_DRIVE,
    PORTS,
    WINDOW_SIZE,
    Backing,
    Disk,
    Hardware,
    Kept,
    command_line,
)
from encamp.machines.monitor import monitor
from encamp.machines.process import Launch, Process
from encamp.machines.tap import Tap
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.model.machine import Share
from encamp.model.size import MIB

PROGRAM = "qemu-system-x86_64"
MONITOR = "monitor"
AGENT = "agent"
SHARES = "shares"
SSH_PORT = 22
KVM = Path("/dev/kvm")
NOTHING = Path("/dev/null")
"""QEMU tries on it what the kernel can lock."""
NAME_SERVERS = Path("/etc/resolv.conf")

FILE_LIMIT = 32 * MIB
"""What a machine may write to its console and log. With a disk, the disk's size comes on top."""

NO_EXECUTABLE = 8
"""The kernel's MFD_NOEXEC_SEAL; some hosts allow no memory file without it."""

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

LOOK = 5.0
"""Seconds between two questions to QEMU whether the machine still runs."""

STOPPED = {
    "internal-error": "KVM could not go on with its processor (internal-error)",
    "io-error": "a drive of it could not be read or written (io-error)",
}
"""States of QEMU in which a machine stands still and nobody resumes it."""

LAST_MOMENTS = 1.0
"""Seconds between a process's last word and its end."""

T = TypeVar("T")


def port_name(number: int) -> str:
    return f"port.{number}"


class Blueprint(msgspec.Struct):
    """One machine to bring to life."""

    name: str
    directory: MachineDirectory
    hardware: Hardware
    image: Image
    user: tuple[int, int] | None
    shares: tuple[Share, ...] = ()
    disk: Disk | None = None
    tied: bool = True
    shielded: bool = False
    """Signals do not end it: a batch system sends them to all processes of a job."""
    tap: Tap | None = None
    """Its wire to a bridge; None: if its hardware has one, it leads nowhere."""
    window: int | None = None
    """Memory that a share server will see, too; None: it has its own, for nobody."""


class Boot(msgspec.Struct):
    """From nothing: the kernel, and a file with what it needs first."""

    kernel: Path
    initramfs: Path
    arguments: tuple[str, ...]
    memory: Path | None = None
    """Keep the memory in this file, for a template; else it is the process's own."""


class Clone(msgspec.Struct):
    """From a template: its memory, mapped copy-on-write, and its device state."""

    memory: Path
    state: Path


class Restore(msgspec.Struct):
    """From a context file that holds everything."""

    context: Path


class BootDisk(msgspec.Struct):
    """From nothing, with the boot loader and the kernel of a whole disk."""


Origin = Boot | BootDisk | Clone | Restore


class MachineKilledError(EncampError):
    """Its process was, by a signal, before it was ready: perhaps by its own user."""


class MachineStoppedError(EncampError):
    """QEMU had stopped its processors for ever, so it was ended."""


class Engine:
    """A machine's process while this program deals with it."""

    def __init__(self, directory: MachineDirectory, process: Process) -> None:
        self.directory = directory
        self.process = process

    @classmethod
    def find(cls, directory: MachineDirectory) -> Engine | None:
        """The process of a machine that somebody started earlier."""
        process = Process.holding(directory.lock)
        return None if process is None else cls(directory, process)

    async def unless_ended(self, work: Coroutine[object, object, T]) -> T:
        """Do something that waits for the machine, and do not wait for a dead one."""
        task = asyncio.create_task(work)
        ended = asyncio.create_task(self.process.ended())
        try:
            await asyncio.wait({task, ended}, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not _lost(task):
                return task.result()
            # A dying process closes its connections before it is gone.
            await asyncio.wait({ended}, timeout=LAST_MOMENTS)
            if not ended.done():
                return task.result()
            error = self.explain("The machine ended before it was ready.")
            if self.process.was_killed:
                raise MachineKilledError(
                    error.code, error.sentence, error.hint, detail=error.detail
                )
            raise error
        finally:
            await _cancel(task)
            await _cancel(ended)

    async def unless_stopped(self, work: Coroutine[object, object, T]) -> T:
        """Do something that the guest has part in. A machine whose processors QEMU has stopped over
        an error is ended: its process would live on and its guest be silent, without a limit."""
        task = asyncio.create_task(work)
        try:
            while not (await asyncio.wait({task}, timeout=LOOK))[0]:
                stopped = STOPPED.get(await self._status_if_told())
                if stopped is not None:
                    await self.process.kill()
                    error = self.explain(f"The machine was ended: {stopped}.")
                    raise MachineStoppedError(
                        error.code, error.sentence, error.hint, detail=error.detail
                    )
            return task.result()
        finally:
            await _cancel(task)

    async def _status_if_told(self) -> str:
        try:
            return await self.status()
        except EncampError:
            return ""  # QEMU is busy with somebody else, or has just ended.

    def explain(self, sentence: str, code: Code = Code.MACHINE_LOST) -> EncampError:
        """An error with the last words of QEMU and of the guest."""
        words = [self.directory.log_tail().strip(), self.directory.console_tail().strip()]
        return EncampError(
            code,
            sentence,
            "Its last words are above." if any(words) else "It left no last words.",
            detail="\n".join(word for word in words if word),
        )

    def connect_monitor(self) -> socket.socket:
        return sockets.connect(self.directory.path, MONITOR)

    async def pause(self) -> None:
        async with monitor(self.connect_monitor()) as control:
            await control.pause()

    async def resume(self) -> None:
        async with monitor(self.connect_monitor()) as control:
            await control.resume()

    async def press_power_button(self) -> None:
        """Ask a guest that has an init of its own to shut down."""
        async with monitor(self.connect_monitor()) as control:
            await control.power_down()

    async def forward(self, port: int) -> int:
        """Let connections through to a TCP port of the guest; the port of this host for it."""
        async with monitor(self.connect_monitor()) as control:
            return await control.forward(port)

    async def status(self) -> str:
        async with monitor(self.connect_monitor()) as control:
            return await control.status()

    async def failed_writes(self) -> int:
        """How often the machine's disk could not be written to."""
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
        await _cancel(saving)


def _lost(task: asyncio.Task[T]) -> bool:
    error = None if task.cancelled() else task.exception()
    return isinstance(error, EncampError) and error.code is Code.MACHINE_LOST


async def _cancel(task: asyncio.Task[T]) -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # Looked at, so that nobody reports it as overlooked.


def launch(blueprint: Blueprint, origin: Origin) -> Engine:
    """Start the process. It is not awake yet: see `wake`."""
    directory, hardware = blueprint.directory, blueprint.hardware
    plan = Launch(directory=directory.run, lock=directory.lock, log=directory.log)
    plan.tied = blueprint.tied
    plan.shielded = blueprint.shielded
    plan.user = blueprint.user
    if hardware.accelerator == "kvm":
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
        return Engine(directory, plan.start(words))


async def wake(engine: Engine, origin: Origin) -> None:
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
    if hardware.accelerator == "kvm":
        plan.devices.append(KVM)
    if hardware.network == "user":
        # The directory: whoever changes it puts a new file in the place of the old one.
        plan.readable.append(NAME_SERVERS.resolve().parent)


@contextmanager
def window() -> Iterator[int]:
    """Memory for the data of large reads and writes between a guest and its share server. Nobody
    can change its size: that would end the other one, who has it mapped. It takes no room before
    something is written to it."""
    try:
        fd = os.memfd_create("encamp-window", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | NO_EXECUTABLE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        fd = os.memfd_create("encamp-window", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, WINDOW_SIZE)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        yield fd
    finally:
        os.close(fd)


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
