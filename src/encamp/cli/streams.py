"""The command line's own standard streams, as those of a command in a machine."""

from __future__ import annotations

import asyncio
import os
import select
import threading

CHUNK = 1 << 17


class StandardStreams:
    """Reads and writes in threads: the streams may be shared with other programs, which would
    not expect them to be made non-blocking. Closing stops a reader that waits for input."""

    def __init__(self, *, use_input: bool = True) -> None:
        self._loop = asyncio.get_running_loop()
        self._use_input = use_input
        self._stop_reading, self._stop = os.pipe()
        self._wanted = threading.Semaphore(0)
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue()
        self._reader: threading.Thread | None = None
        self._closed = False

    async def read(self) -> bytes:
        if not self._use_input:
            return b""
        if self._reader is None:
            self._reader = threading.Thread(target=self._read_input, daemon=True)
            self._reader.start()
        self._wanted.release()
        return await self._pieces.get()

    def _read_input(self) -> None:
        while True:
            self._wanted.acquire()
            try:
                ready, _, _ = select.select([0, self._stop_reading], [], [])
                piece = b"" if self._stop_reading in ready else os.read(0, CHUNK)
            except OSError:
                piece = b""  # Standard input is closed, or a terminal that went away.
            if self._closed:
                return
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)
            if not piece:
                return

    async def write(self, data: bytes) -> None:
        await self._loop.run_in_executor(None, _write_all, 1, data)

    async def write_error(self, data: bytes) -> None:
        await self._loop.run_in_executor(None, _write_all, 2, data)

    def close(self) -> None:
        self._closed = True
        os.close(self._stop)
        self._wanted.release()
        if self._reader is not None:
            self._reader.join()
        os.close(self._stop_reading)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
