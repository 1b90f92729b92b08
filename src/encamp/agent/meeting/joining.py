"""Passing on what a client and the process that carries out its command say to each other."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path

from encamp.door.socket_file import short
from encamp.meeting.frames import LARGEST, LENGTH, Gone, Show, frame, senseless
from encamp.meeting.line import UNREAD
from encamp.model.errors import EncampError

BACK_ON_NETWORK = 30.0
"""Seconds within which a client may come back whose connection broke."""
BACK_AFTER_CLOSING = 3.0
"""The same, if its connection was closed: most likely its process has ended."""

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def reach(path: Path) -> Ends | None:
    """The process at this socket, if one listens there."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        with short(path) as address:
            await asyncio.get_running_loop().sock_connect(connection, address)
        return await asyncio.open_unix_connection(sock=connection, limit=UNREAD)
    except OSError:
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise


async def join(client: Ends, process: Ends, show: Show, *, local: bool) -> None:
    """Until one of the two is gone. Neither is read from faster than the other takes it."""
    for _, writer in (client, process):
        writer.transport.set_write_buffer_limits(high=UNREAD)
    process[1].write(frame(show))
    up = asyncio.create_task(_up(client[0], process[1], local))
    down = asyncio.create_task(_down(process[0], client[1]))
    try:
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        if up.done():
            # What it said last, or that it is gone, has to arrive.
            await _close(process[1])
        else:
            await _close(client[1])
    finally:
        for task in (up, down):
            task.cancel()
        await asyncio.wait({up, down})
        for _, writer in (client, process):
            writer.transport.abort()
    for task in (up, down):
        if not task.cancelled():
            task.result()


async def _up(client: asyncio.StreamReader, process: asyncio.StreamWriter, local: bool) -> None:
    """Frame by frame: of one that came in half, nothing is passed on."""
    grace = 0.0 if local else BACK_AFTER_CLOSING
    try:
        while True:
            head = await client.readexactly(LENGTH.size)
            (length,) = LENGTH.unpack(head)
            if length > LARGEST:
                raise senseless("The client", "a frame that is too long")
            body = await client.readexactly(length)
            try:
                process.write(head + body)
                await process.drain()
            except OSError:
                return
    except asyncio.IncompleteReadError:
        pass
    except (OSError, EncampError):
        grace = 0.0 if local else BACK_ON_NETWORK
    process.write(frame(Gone(grace)))


async def _down(process: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await process.read(UNREAD):
            client.write(data)
            await client.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        writer.close()
        await writer.wait_closed()
