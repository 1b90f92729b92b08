"""Our ends of pipes that lead to a process: what is in them, without waiting for what is not."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from io import FileIO
from typing import Any

PIECE = 1 << 14
CAPACITY = 1 << 16
"""Of a pipe."""


async def fill(file: FileIO, data: bytes) -> None:
    """Raises OSError if nobody reads it any more."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(file.fileno(), view) :]
        except BlockingIOError:
            await _ready(file, writing=True)


async def drain(
    file: FileIO, take: Callable[[bytes], Awaitable[None]], ended: asyncio.Future[Any]
) -> None:
    """All that a process prints. When it has ended, what is there then is all: others may hold the
    pipe."""
    left = CAPACITY
    while left > 0:
        over = ended.done()
        try:
            data = os.read(file.fileno(), PIECE)
        except BlockingIOError:
            if over:
                return
            await _either(_ready(file, writing=False), ended)
            continue
        if not data:
            break
        left -= len(data) if over else 0
        await take(data)
    await asyncio.wait({ended})


async def _either(ready: Awaitable[None], ended: asyncio.Future[Any]) -> None:
    waiting = asyncio.ensure_future(ready)
    try:
        both: set[asyncio.Future[Any]] = {waiting, ended}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting


async def _ready(file: FileIO, *, writing: bool) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not ready.done():
            ready.set_result(None)

    if writing:
        loop.add_writer(file, settle)
    else:
        loop.add_reader(file, settle)
    try:
        await ready
    finally:
        if writing:
            loop.remove_writer(file)
        else:
            loop.remove_reader(file)
