"""What the commands of several machines print, line by line, with the number of the machine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from encamp.cli.streams import StandardStreams

LONGEST = 64 << 10
"""Bytes of a line that are waited for."""


class Labelled:
    """They have no input: it could not be said whose it is."""

    def __init__(self, streams: StandardStreams, number: int, count: int) -> None:
        self._label = f"{number:>{len(str(count - 1))}}: ".encode()
        self._write = streams.write
        self._write_error = streams.write_error
        self._out = bytearray()
        self._error = bytearray()

    async def read(self) -> bytes:
        return b""

    async def write(self, data: bytes) -> None:
        await self._lines(self._out, data, self._write)

    async def write_error(self, data: bytes) -> None:
        await self._lines(self._error, data, self._write_error)

    async def flush(self) -> None:
        """At the end: what has no end of line."""
        for begun, write in ((self._out, self._write), (self._error, self._write_error)):
            if begun:
                await write(self._label + bytes(begun) + b"\n")
                begun.clear()

    async def _lines(
        self, begun: bytearray, data: bytes, write: Callable[[bytes], Awaitable[None]]
    ) -> None:
        begun += data
        whole, newline, rest = begun.rpartition(b"\n")
        if len(rest) > LONGEST:
            whole, newline, rest = begun, bytearray(b"\n"), bytearray()
        if newline:
            lines = bytes(whole).split(b"\n")
            begun[:] = rest
            await write(b"".join(self._label + line + b"\n" for line in lines))
