"""A job's starter at the door: who it is by the kernel's word, what it asks for, and the files that
it has brought along."""

from __future__ import annotations

import array
import asyncio
import errno
import fcntl
import os
import signal
import socket
import struct
import termios
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import msgspec

from encamp.agent.bait.frames import (
    HEADER,
    JOB,
    LARGEST,
    Asked,
    read_job,
    senseless,
    too_large,
)
from encamp.agent.caller import as_user
from encamp.door.peer import CREDENTIALS, SO_PEERGROUPS
from encamp.model.errors import Code, EncampError
from encamp.model.job import User
from encamp.polling import is_readable

STREAMS = 3
"""Files that come with a job: its standard input, output and error."""
FEW_GROUPS, MOST_GROUPS = 256, 65536
"""As many as Python can ask the kernel for, and as Linux knows of one process."""
MOST_LOOKED_AT = 1 << 18
"""Bytes of which it is found out whether files came with them."""
SO_PEERPIDFD = 77
"""Linux's number for it, since 6.5."""

LACKING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Why this host cannot look at a process just now, which says nothing about that."""

T = TypeVar("T")

TICKS = os.sysconf("SC_CLK_TCK")


class Starter(msgspec.Struct, frozen=True, kw_only=True):
    """The process of a starter, as the kernel knows it."""

    pid: int
    uid: int
    gid: int
    groups: tuple[int, ...]
    began: int
    """In the kernel's ticks since its start: tells a process from a later one of its number."""


class Visit:
    """One starter. All that is open for it is closed at its end, or handed on."""

    starter: Starter

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.pid, self.uid, _ = credentials_of(connection)
        self.files: list[int] = []
        self._taking: threading.Thread | None = None
        self.payload = b""
        """What it asks for, as it came,"""
        self.asked = Asked(system="")
        """and once it is understood."""

    def recognize(self) -> None:
        """Raises GoneError if it is gone, and OSError if nothing can be found out just now."""
        self.starter = starter_of(self.connection)

    @cached_property
    def user(self) -> User:
        """As this host knows it. The first answer may take a while: for a thread."""
        return as_user(self.starter.uid, self.starter.gid, self.starter.groups)

    async def length(self) -> int:
        """How long it is what it asks for: that comes first."""
        length, kind = HEADER.unpack(await self._read(HEADER.size))
        if kind != JOB:
            raise senseless(f"a frame of kind {kind}, where its job was expected")
        if length > LARGEST:
            raise too_large(f"{length} bytes, where {LARGEST} are allowed")
        return int(length)

    async def listen(self, length: int) -> None:
        """Take in what it asks for. Nothing more is read than that."""
        self.payload = await self._read(length)
        if len(self.files) != STREAMS:
            raise senseless(f"{len(self.files)} open files with it, and not {STREAMS}")

    def understand(self) -> None:
        """It may be long: for a thread."""
        self.asked = read_job(self.payload)

    async def _read(self, count: int) -> bytes:
        whole = bytearray()
        while len(whole) < count:
            piece = await self._receive(min(count - len(whole), 1 << 18))
            if not piece:
                raise GoneError
            whole += piece
        return bytes(whole)

    async def _receive(self, most: int) -> bytes:
        while True:
            try:
                data, _, flags, _ = self.connection.recvmsg(most, 0, socket.MSG_PEEK)
                if not flags & socket.MSG_CTRUNC:
                    return self.connection.recv(len(data)) if data else b""
            except (BlockingIOError, InterruptedError):
                await readable(self.connection)
                continue
            except ConnectionError:
                raise GoneError from None
            if self.files:
                raise senseless("more open files than a job has")
            return await self._take_files(len(data))

    async def _take_files(self, count: int) -> bytes:
        """By a thread: the kernel closes those that are too many, and that may take its time."""
        loop = asyncio.get_running_loop()
        taken: asyncio.Future[bytes] = loop.create_future()

        def take() -> None:
            room = socket.CMSG_LEN(STREAMS * array.array("i").itemsize)
            data, control, flags, _ = self.connection.recvmsg(count, room, socket.MSG_CMSG_CLOEXEC)
            for level, type, value in control:
                if (level, type) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    self.files += files_in(value)
            too_many = bool(flags & socket.MSG_CTRUNC)
            with suppress(RuntimeError):  # The agent has ended.
                loop.call_soon_threadsafe(_settle, taken, b"" if too_many else data)

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        self._taking = thread
        data = await taken
        if not data and len(self.files) < STREAMS:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if not data:
            raise senseless("more open files than a job has")
        return data

    async def say(self, frame: bytes) -> None:
        """What cannot be said to it now will not be said at all."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(5.0):
                await asyncio.get_running_loop().sock_sendall(self.connection, frame)

    def is_gone(self) -> bool:
        try:
            return self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True

    @property
    def was_taken(self) -> bool:
        """Files of it may be open here, and its connection in other hands."""
        return self._taking is not None

    def may_hold_files(self) -> bool:
        """Of one of which nothing was taken: do files wait in its connection? No more can come."""
        try:
            self.connection.shutdown(socket.SHUT_RD)
            waiting = bytes_waiting(self.connection)
            if not 0 < waiting < MOST_LOOKED_AT:
                return waiting > 0
            data, _, flags, _ = self.connection.recvmsg(waiting, 0, socket.MSG_PEEK)
        except OSError:
            return True
        # What is urgent is passed over by this look, and so is all that comes after.
        return bool(flags & socket.MSG_CTRUNC) or len(data) < waiting

    def close(self) -> None:
        """For a thread: of what it has brought, be it taken or not, something may take its time
        over that."""
        if self._taking is not None:
            self._taking.join()
        self.connection.close()
        files, self.files = self.files, []
        close_all(files)


class GoneError(Exception):
    """It has gone, and there is nobody to tell anything."""


async def readable(connection: socket.socket) -> None:
    """Until there is something to read, or to accept."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(connection, _settle, ready, None)
    try:
        await ready
    finally:
        loop.remove_reader(connection)


def _settle(ready: asyncio.Future[T], result: T) -> None:
    if not ready.done():
        ready.set_result(result)


def bytes_waiting(connection: socket.socket) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(connection, termios.FIONREAD, count)
    return count[0]


def files_in(value: bytes) -> list[int]:
    """Descriptors that came along; some may be cut off, which the kernel has closed then."""
    numbers = array.array("i")
    numbers.frombytes(value[: len(value) - len(value) % numbers.itemsize])
    return list(numbers)


def close_all(files: Sequence[int]) -> None:
    for file in files:
        with suppress(OSError):
            os.close(file)


def credentials_of(connection: socket.socket) -> tuple[int, int, int]:
    """Process, user and group at the other end."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    pid, uid, gid = CREDENTIALS.unpack(found)
    return pid, uid, gid


def starter_of(connection: socket.socket) -> Starter:
    """Who is at the other end. Raises GoneError if nobody is any more, and OSError if that cannot
    be told now."""
    pid, uid, gid = credentials_of(connection)
    process = process_state(pid)
    if process is None or not _is_still_there(connection):
        raise GoneError
    return Starter(pid=pid, uid=uid, gid=gid, groups=_groups(connection), began=process[1])


def _is_still_there(connection: socket.socket) -> bool:
    """Whether its number is still its own: one that has ended may have lent it to another. Older
    kernels do not tell."""
    try:
        fd = connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        if error.errno in LACKING:
            raise
        return error.errno == errno.ENOPROTOOPT
    try:
        return not is_readable(fd)
    finally:
        os.close(fd)


def _groups(connection: socket.socket) -> tuple[int, ...]:
    """All other groups of the process that came, as they were then."""
    numbers = array.array("I")
    try:
        few = FEW_GROUPS * numbers.itemsize
        numbers.frombytes(connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, few))
    except OSError as error:
        if error.errno == errno.ERANGE:
            return _many_groups(connection)
        raise EncampError(
            Code.NOT_PERMITTED, f"Its groups cannot be found out: {error.strerror}."
        ) from error
    return tuple(numbers)


def _many_groups(connection: socket.socket) -> tuple[int, ...]:
    """More than Python can ask for."""
    import ctypes

    numbers = (ctypes.c_uint32 * MOST_GROUPS)()
    length = ctypes.c_uint32(ctypes.sizeof(numbers))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.getsockopt(
        connection.fileno(), socket.SOL_SOCKET, SO_PEERGROUPS, numbers, ctypes.byref(length)
    ):
        number = ctypes.get_errno()
        raise EncampError(
            Code.NOT_PERMITTED, f"Its groups cannot be found out: {os.strerror(number)}."
        )
    return tuple(numbers[: length.value // struct.calcsize("I")])


def process_state(pid: int) -> tuple[str, int] | None:
    """In which state a process is, as a letter, and when it began; None: there is none."""
    fields = _fields(pid)
    return (fields[0].decode(), int(fields[19])) if len(fields) > 19 else None


def _fields(pid: int) -> list[bytes]:
    """What the kernel tells of a process, from its state on."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError as error:
        if error.errno in LACKING:
            raise
        return []


def is_held(pid: int, by: int) -> bool:
    """Was this process killed, without anybody's knowing but the other one, which traces it?"""
    fields = _fields(pid)
    if len(fields) < 50 or fields[0] != b"Z" or int(fields[49]) != signal.SIGKILL:
        return False
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return False
    return b"TracerPid:\t%d" % by in status.splitlines()


def began_at(pid: int) -> float:
    """When a process began, by the clock on the wall; 0: there is none."""
    process = process_state(pid)
    if process is None:
        return 0.0
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + process[1] / TICKS


def is_there(starter: Starter) -> bool:
    """Is its process still there?"""
    process = process_state(starter.pid)
    return process is not None and process[1] == starter.began and process[0] not in "ZX"
