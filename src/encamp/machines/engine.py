"""A machine's process, whatever the machine is made of: what it is to be, and what it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import TypeVar

import msgspec

from encamp.machines.directory import MachineDirectory
from encamp.machines.hardware import Disk, Hardware
from encamp.machines.process import Process
from encamp.machines.tap import Tap
from encamp.model.driver import Isolation
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.model.machine import Share
from encamp.model.size import MIB

SHARES = "shares"

FILE_LIMIT = 32 * MIB
"""What a machine may write to its console and log. With a disk, the disk's size comes on top."""

LOOK = 5.0
"""Seconds between two questions whether the machine still runs."""

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
    isolation: Isolation = Isolation.KERNEL
    tap: Tap | None = None
    """Its wire to a bridge; None: if its hardware has one, it leads nowhere."""
    window: int | None = None
    """Memory that a share server will see, too; None: it has its own, for nobody."""


class Library(msgspec.Struct):
    """The C library of a user-mode kernel that needs a newer one than the host's."""

    loader: Path
    file: Path


class Boot(msgspec.Struct):
    """From nothing: the kernel, and a file with what it needs first."""

    kernel: Path
    initramfs: Path
    arguments: tuple[str, ...]
    memory: Path | None = None
    """Keep the memory in this file, for a template; else it is the process's own."""
    library: Library | None = None


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
    """Its processors had been stopped for ever, so it was ended."""


class Engine:
    """A machine's process while this program deals with it."""

    def __init__(self, directory: MachineDirectory, process: Process) -> None:
        self.directory = directory
        self.process = process

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
            await cancel(task)
            await cancel(ended)

    async def unless_stopped(self, work: Coroutine[object, object, T]) -> T:
        """Do something that the guest has part in. A machine whose processors were stopped over
        an error is ended: its process would live on and its guest be silent, without a limit."""
        task = asyncio.create_task(work)
        try:
            while not (await asyncio.wait({task}, timeout=LOOK))[0]:
                stopped = await self.stopped()
                if stopped:
                    await self.process.kill()
                    error = self.explain(f"The machine was ended: {stopped}.")
                    raise MachineStoppedError(
                        error.code, error.sentence, error.hint, detail=error.detail
                    )
            return task.result()
        finally:
            await cancel(task)

    def explain(self, sentence: str, code: Code = Code.MACHINE_LOST) -> EncampError:
        """An error with the last words of the machine's process and of the guest."""
        words = [self.directory.log_tail().strip(), self.directory.console_tail().strip()]
        return EncampError(
            code,
            sentence,
            "Its last words are above." if any(words) else "It left no last words.",
            detail="\n".join(word for word in words if word),
        )

    # What differs from driver to driver; see `drivers.find` for which it is.

    async def pause(self) -> None:
        raise NotImplementedError

    async def resume(self) -> None:
        raise NotImplementedError

    async def stopped(self) -> str:
        """Why its processors stand still for ever; empty if they do not, as far as can be told."""
        return ""

    async def failed_writes(self) -> int:
        """How often the machine's disk could not be written to."""
        return 0

    async def check_accepted(self) -> None:
        """See that the host lets the machine run, before its guest is sent any work."""

    async def press_power_button(self) -> None:
        """Ask a guest that has an init of its own to shut down."""
        raise NotImplementedError

    async def forward(self, port: int) -> int:
        """Let connections through to a TCP port of the guest; the port of this host for it."""
        raise NotImplementedError

    async def save(self, target: Path, *, memory_is_mapped: bool) -> None:
        """Write the machine's state; it stands still afterwards, and goes on if that fails."""
        raise NotImplementedError


def _lost(task: asyncio.Task[T]) -> bool:
    error = None if task.cancelled() else task.exception()
    return isinstance(error, EncampError) and error.code is Code.MACHINE_LOST


async def cancel(task: asyncio.Task[T]) -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # Looked at, so that nobody reports it as overlooked.
