"""One connection, on which frames go both ways."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import msgspec

from encamp.meeting.frames import LARGEST, LENGTH, frame, senseless

UNREAD = 256 << 10
"""Bytes that wait in this process for the other side to read them, or for us to."""
ALIVE_AFTER, ALIVE_EVERY, ALIVE_TIMES = 20, 5, 6
"""Seconds of silence after which the kernel asks the other side's whether it is there, how often,
and how many times in vain. A client that stands still (Ctrl-Z) is there."""


class Line:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        writer.transport.set_write_buffer_limits(high=UNREAD)

    def send(self, value: msgspec.Struct) -> None:
        self._writer.write(frame(value))

    async def drained(self) -> None:
        await self._writer.drain()

    @property
    def crowded(self) -> bool:
        """The other side does not keep up: what can be left out, should be."""
        return self._writer.transport.get_write_buffer_size() > UNREAD // 2

    async def receive(self, largest: int = LARGEST) -> bytes:
        """The next frame's body. Raises EOFError when the other side has closed, between frames or
        in the middle of one."""
        try:
            (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            if length > largest:
                raise senseless("The other side", "a frame that is too long")
            return await self._reader.readexactly(length)
        except asyncio.IncompleteReadError as error:
            raise EOFError from error

    async def close(self) -> None:
        """After what was sent has arrived at the kernel, or cannot any more."""
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    def abort(self) -> None:
        self._writer.transport.abort()


def keep_alive(connection: socket.socket) -> None:
    """Small frames go at once, and a peer that has lost its power is noticed."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, ALIVE_AFTER)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ALIVE_EVERY)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, ALIVE_TIMES)
