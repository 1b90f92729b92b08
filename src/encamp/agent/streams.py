"""Connecting a command's streams with those of whoever asked for it."""

from __future__ import annotations

import asyncio
import signal
from typing import Protocol

from encamp.guest.channel import Exit, Output, Stream
from encamp.model.errors import EncampError


class Streams(Protocol):
    """Where a command's input comes from and its output goes."""

    async def read(self) -> bytes:
        """The next piece of input; empty at its end."""

    async def write(self, data: bytes) -> None:
        """Take a piece of standard output. Raises BrokenPipeError if nobody wants it."""

    async def write_error(self, data: bytes) -> None:
        """Take a piece of standard error."""


class Silence:
    """No input; output goes nowhere."""

    async def read(self) -> bytes:
        return b""

    async def write(self, data: bytes) -> None:
        pass

    async def write_error(self, data: bytes) -> None:
        pass


async def attend(stream: Stream, streams: Streams) -> Exit:
    """Pass everything through, in both directions, until the command has ended."""
    feeding = asyncio.create_task(_feed(stream, streams))
    try:
        await asyncio.gather(
            _drain(stream, stream.stdout, streams.write),
            _drain(stream, stream.stderr, streams.write_error),
        )
        return await stream.wait()
    finally:
        feeding.cancel()
        await asyncio.wait({feeding})


async def _feed(stream: Stream, streams: Streams) -> None:
    try:
        while not stream.unread and (data := await streams.read()):
            await stream.write(data)
        await stream.end()
    except EncampError:
        pass  # The machine was lost: whoever waits for the command is told.


class _Writer(Protocol):
    async def __call__(self, data: bytes) -> None: ...


async def _drain(stream: Stream, output: Output, write: _Writer) -> None:
    async for data in output:
        try:
            await write(data)
        except BrokenPipeError:
            # What a pipe's writer gets on this host, it gets in the machine too.
            output.discard()
            stream.signal(signal.SIGPIPE)
            return
