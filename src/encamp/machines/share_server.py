"""The share server of a machine: a process that does on the host what the guest asks of shares.

QEMU only passes messages on and cannot reach the shared directories. The server reaches nothing
else. It ends by itself when QEMU does; until then, a lock tells that it is there.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import TypeVar

from encamp.machines import sockets
from encamp.machines.directory import MachineDirectory
from encamp.machines.engine import FILE_LIMIT, LAST_MOMENTS, SHARES, Blueprint
from encamp.machines.hardware import WINDOW_SIZE
from encamp.machines.process import Launch, Process
from encamp.model.errors import Code, EncampError
from encamp.model.machine import Share

PROGRAM = Path(__file__).with_name("encamp-shares")

NO_EXECUTABLE = 8
"""The kernel's MFD_NOEXEC_SEAL; some hosts allow no memory file without it."""

T = TypeVar("T")


class ServerEndedError(EncampError):
    """A machine's share server ended while it was needed."""


def serve(blueprint: Blueprint) -> None:
    """Start the server of a machine that has shares. Not before its state is loaded: QEMU loses the
    guest's interrupt if it accepts a connection meanwhile."""
    directory = blueprint.directory
    # A restored machine may have one from before it slept, on its last way.
    directory.end_shares()
    plan = Launch(directory=directory.run, lock=directory.shares_lock, log=directory.log)
    # Not tied to us, even if the machine is: once QEMU has ended with us, so does its server.
    plan.shielded = blueprint.shielded
    plan.user = blueprint.user
    plan.confined = True
    plan.watches = True
    plan.sockets = "none"
    if all(share.readonly for share in blueprint.shares):
        plan.file_limit = FILE_LIMIT
    words = [str(PROGRAM)]
    with _program() as program, sockets.connect(directory.path, SHARES) as channel:
        channel.setblocking(True)
        plan.program = program.fileno()
        plan.descriptors.append(channel.fileno())
        words += ["--channel", str(channel.fileno())]
        if blueprint.window is not None:
            plan.descriptors.append(blueprint.window)
            words += ["--window", str(blueprint.window)]
        if blueprint.user is not None:
            words.append("--no-setgid")
        if _overlap(blueprint.shares):
            words.append("--overlap")
        for number, share in enumerate(blueprint.shares):
            source = share.source
            if blueprint.user is not None:
                source = f"share{number}"
                plan.shares.append((share, source))
            else:
                (plan.readable if share.readonly else plan.writable).append(source)
            words += ["--share-readonly" if share.readonly else "--share", source]
        try:
            plan.start(words).close()
        except EncampError as error:
            if error.code is not Code.MACHINE_LOST:
                raise
            raise _ended(directory) from error


async def while_served(directory: MachineDirectory, work: Coroutine[object, object, T]) -> T:
    """Do something that mounts shares, and do not wait for a server that has ended."""
    server = Process.holding(directory.shares_lock)
    if server is None:
        work.close()
        raise _ended(directory)
    task = asyncio.create_task(work)
    ended = asyncio.create_task(server.ended())
    try:
        await asyncio.wait({task, ended}, return_when=asyncio.FIRST_COMPLETED)
        if task.done() and (task.cancelled() or task.exception() is None):
            return task.result()
        # A dying process closes its connections before it is gone: the guest may tell first.
        await asyncio.wait({ended}, timeout=LAST_MOMENTS)
        if ended.done():
            raise _ended(directory)
        return task.result()
    finally:
        for one in (task, ended):
            one.cancel()
        await asyncio.gather(task, ended, return_exceptions=True)
        server.close()


def _overlap(shares: Sequence[Share]) -> bool:
    """Is a share another's directory, or one within it?"""
    places = [Path(share.source).resolve() for share in shares]
    return any(
        one.is_relative_to(other)
        for number, one in enumerate(places)
        for other in places[:number] + places[number + 1 :]
    )


def _program() -> FileIO:
    """Opened by us: where it lies may be closed to whom it runs as."""
    try:
        return FileIO(PROGRAM)
    except FileNotFoundError as error:
        raise EncampError(
            Code.PROGRAM_MISSING,
            "Encamp's share server has not been built.",
            "Run 'make setup' in the source tree, or install the package again.",
        ) from error


def _ended(directory: MachineDirectory) -> ServerEndedError:
    words = directory.log_tail().strip()
    return ServerEndedError(
        Code.MACHINE_LOST,
        "The machine's share server ended before the shares were mounted.",
        "Its last words are above." if words else "It left no last words.",
        detail=words,
    )


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
