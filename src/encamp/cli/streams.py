"""The command line's own standard streams, as those of a command in a machine."""

from __future__ import annotations

import asyncio
import codecs
import os
import queue
import select
import threading
from collections.abc import Callable

from encamp.cli.cleaning import clean_lines

CHUNK = 1 << 17


class Worker:
    """A thread that does one blocking thing after another for the event loop.

    The streams may be shared with other programs, which would not expect them to be made
    non-blocking. A worker that hangs (nobody reads our output) does not keep the process alive.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._work: queue.SimpleQueue[tuple[Callable[[], bytes], asyncio.Future[bytes]]]
        self._work = queue.SimpleQueue()
        self._started = False

    async def do(self, work: Callable[[], bytes]) -> bytes:
        if not self._started:
            self._started = True
            threading.Thread(target=self._run, daemon=True).start()
        done: asyncio.Future[bytes] = self._loop.create_future()
        self._work.put((work, done))
        return await done

    def _run(self) -> None:
        while True:
            work, done = self._work.get()
            try:
                result, error = work(), None
            except OSError as problem:
                result, error = b"", problem
            try:
                self._loop.call_soon_threadsafe(_settle, done, result, error)
            except RuntimeError:
                return  # The loop has ended, and with it whoever wanted this.


def _settle(done: asyncio.Future[bytes], result: bytes, error: OSError | None) -> None:
    if done.cancelled():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


class StandardStreams:
    def __init__(self) -> None:
        self._input, self._output, self._error = Worker(), Worker(), Worker()
        self._stop_reading, self._stop = os.pipe()

    async def read(self) -> bytes:
        return await self._input.do(self._read_piece)

    def _read_piece(self) -> bytes:
        try:
            # Waiting for both lets a reader be stopped that would take input from our successor.
            ready, _, _ = select.select([0, self._stop_reading], [], [])
            return os.read(0, CHUNK) if ready == [0] else b""
        except (OSError, ValueError):
            return b""  # Standard input is closed, or a terminal that went away.

    async def write(self, data: bytes) -> None:
        await self._output.do(lambda: _write_all(1, data))

    async def write_error(self, data: bytes) -> None:
        await self._error.do(lambda: _write_all(2, data))

    def close(self) -> None:
        """Take no more input. The other end stays open: a thread may still wait for it."""
        os.close(self._stop)


class CleanStreams(StandardStreams):
    """What somebody else's command prints tells a terminal nothing but its text."""

    def __init__(self) -> None:
        super().__init__()
        decoder = codecs.getincrementaldecoder("utf-8")
        self._letters = {fd: decoder("backslashreplace") for fd in (1, 2) if os.isatty(fd)}

    async def write(self, data: bytes) -> None:
        await super().write(self._cleaned(1, data))

    async def write_error(self, data: bytes) -> None:
        await super().write_error(self._cleaned(2, data))

    def _cleaned(self, fd: int, data: bytes) -> bytes:
        # A letter may come in two pieces.
        letters = self._letters.get(fd)
        return data if letters is None else clean_lines(letters.decode(data)).encode()


def _write_all(fd: int, data: bytes) -> bytes:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    return b""
