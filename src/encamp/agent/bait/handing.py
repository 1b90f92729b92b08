"""Handing a starter on: from the agent, which has let it in, to the process that carries its job
out. From then on the two speak with each other, and do not need the agent any more.

What the job has said goes the same way, and not by the disk: there may be secrets in it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from encamp.agent.bait.frames import LARGEST, Asked, read_job
from encamp.agent.bait.starter import STREAMS, Visit, close_all, readable
from encamp.agent.commands.directory import CommandDirectory, not_written
from encamp.door.peer import uid_of
from encamp.machines import sockets
from encamp.model.errors import Code, EncampError

HAND = "hand"
"""In the command's directory: where the agent waits for the process. Nobody else can enter."""
LENGTH = struct.Struct("<I")
PATIENCE = 30.0
"""Seconds in which a command's process is there, and"""
LOOK = 0.2
"""between two looks at whether it is over already, and"""
QUICK = 10.0
"""in which it has taken what it is handed."""


class Handed:
    """What the process has been handed."""

    def __init__(self, connection: socket.socket, files: Sequence[int], asked: Asked) -> None:
        self.connection = connection
        self.input, self.output, self.error = files
        self.asked = asked


@contextmanager
def wait_here(directory: Path) -> Iterator[socket.socket]:
    """Before the command is begun, which looks for it at once. If it is not begun, nothing of it
    is left."""
    try:
        with _listening(directory) as listener:
            yield listener
    finally:
        command = CommandDirectory(directory)
        if command.read_request() is None:
            command.remove()


def _listening(directory: Path) -> socket.socket:
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        return sockets.listen(directory, HAND)
    except OSError as error:
        raise not_written(error, f"command {directory.name}") from error


async def hand_over(listener: socket.socket, visit: Visit, is_over: Callable[[], bool]) -> None:
    """Until the process has all of it, or is over. Its owner can have stopped it, so nobody else's
    waits for it, as for a thread."""
    loop = asyncio.get_running_loop()
    try:
        with await _accepted(listener, is_over) as its:
            if uid_of(its) != os.geteuid():
                raise PermissionError
            its.setblocking(False)
            async with asyncio.timeout(QUICK):
                files = [visit.connection.fileno(), *visit.files]
                socket.send_fds(its, [LENGTH.pack(len(visit.payload))], files)
                await loop.sock_sendall(its, visit.payload)
                if await loop.sock_recv(its, 1) != b"t":
                    raise ConnectionResetError
    except OSError as error:
        raise EncampError(
            Code.INTERNAL,
            "The process that was to carry it out did not come about, or was ended at once.",
            transient=True,
        ) from error


async def _accepted(listener: socket.socket, is_over: Callable[[], bool]) -> socket.socket:
    listener.setblocking(False)
    patience = time.monotonic() + PATIENCE
    while True:
        try:
            return listener.accept()[0]
        except BlockingIOError:
            if is_over() or time.monotonic() > patience:
                raise
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK):
                await readable(listener)


def take_over(directory: Path) -> Handed:
    """In that process. If the agent is gone, so is the starter's connection: it comes again, to
    the next agent."""
    files: list[int] = []
    try:
        with sockets.connect(directory, HAND) as its:
            its.settimeout(QUICK)
            head, files, _, _ = socket.recv_fds(
                its, LENGTH.size, 1 + STREAMS, socket.MSG_CMSG_CLOEXEC
            )
            (length,) = LENGTH.unpack(head)
            if length > LARGEST or len(files) != 1 + STREAMS:
                raise ConnectionResetError
            payload = bytearray()
            while len(payload) < length:
                piece = its.recv(min(1 << 20, length - len(payload)))
                if not piece:
                    raise ConnectionResetError
                payload += piece
            its.send(b"t")
        with suppress(OSError):
            (directory / HAND).unlink()
        connection = socket.socket(fileno=files[0])
        return Handed(connection, files[1:], read_job(bytes(payload)))
    except (OSError, struct.error, EncampError) as error:
        close_all(files)
        raise EncampError(
            Code.INTERNAL,
            "The agent was gone before it had handed the job's starter on.",
            transient=True,
        ) from error
