"""The streams of a batch job: files, pipes or terminals that its starter was given, and that are
used here just as they are. Others have them open, too: nothing about them is changed, least of all
whether they block. So each has a thread.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import struct
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from encamp.polling import wait_writable

PIECE = 1 << 16


class Worker:
    """A thread that does one thing after the other. It may hang in one for good, on a pipe that
    nobody writes to: nobody waits for it at the end."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._todo: list[tuple[Callable[[], object], asyncio.Future[object]]] = []
        self._ready = threading.Condition()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def do(self, work: Callable[[], object]) -> object:
        done: asyncio.Future[object] = self._loop.create_future()
        with self._ready:
            self._todo.append((work, done))
            self._ready.notify()
        return await done

    def _run(self) -> None:
        while True:
            with self._ready:
                while not self._todo:
                    self._ready.wait()
                work, done = self._todo.pop(0)
            result: object = None
            error: BaseException | None = None
            try:
                result = work()
            except BaseException as raised:
                error = raised
            with suppress(RuntimeError):  # The loop has ended.
                self._loop.call_soon_threadsafe(_settle, done, result, error)


def _settle(done: asyncio.Future[object], result: object, error: BaseException | None) -> None:
    if done.done():
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(result)


class FileStreams:
    """Of one job. What could not be written is remembered: such a job was no success."""

    def __init__(self, input: int, output: int, error: int) -> None:
        self.input, self.output, self.error = input, output, error
        self.trouble = ""
        self._reader = Worker("input")
        self._writers = {output: Worker("output"), error: Worker("error")}

    async def read(self) -> bytes:
        try:
            data = await self._reader.do(lambda: os.read(self.input, PIECE))
        except OSError:
            return b""  # As if there was none: it may be closed, or a directory.
        assert isinstance(data, bytes)
        return data

    async def write(self, data: bytes) -> None:
        await self._write(self.output, data, "output")

    async def write_error(self, data: bytes) -> None:
        await self._write(self.error, data, "error")

    async def _write(self, file: int, data: bytes, which: str) -> None:
        if self.trouble:
            return
        try:
            await self._writers[file].do(lambda: _write_all(file, data))
        except BrokenPipeError:
            raise
        except OSError as error:
            # What a full disk would have told the command, it cannot be told here.
            why = os.strerror(error.errno or errno.EIO)
            self.trouble = f"Its standard {which} could not be written: {why}."

    @property
    def is_one(self) -> bool:
        """Do both outputs go to one place? Then what is printed stays in order."""
        try:
            return os.path.samestat(os.fstat(self.output), os.fstat(self.error))
        except OSError:
            return False

    # ── terminals ────────────────────────────────────────────────────────────────────────────────

    @property
    def is_terminal(self) -> bool:
        return os.isatty(self.input) and os.isatty(self.output)

    def window(self) -> tuple[int, int]:
        """Its rows and columns."""
        try:
            found = fcntl.ioctl(self.output, termios.TIOCGWINSZ, bytes(8))
        except OSError:
            return 24, 80
        rows, columns, _, _ = struct.unpack("HHHH", found)
        return rows or 24, columns or 80

    @contextmanager
    def raw(self) -> Iterator[None]:
        """The machine's terminal does what a terminal does; this one only passes on."""
        if not self.is_terminal:
            yield
            return
        before = termios.tcgetattr(self.input)
        try:
            tty.setraw(self.input, termios.TCSANOW)
            yield
        finally:
            with suppress(OSError, termios.error):
                termios.tcsetattr(self.input, termios.TCSANOW, before)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(file, view) :]
        except BlockingIOError:
            # Whoever has it open, too, has said that it is not to block.
            wait_writable(file)
