"""One command's streams on the host's side: what it prints, what it reads, and how it ends."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Protocol

from encamp.guest.frames import (
    CREDIT_BATCH,
    CREDIT_LIMIT,
    CREDIT_START,
    PAYLOAD_LIMIT,
    STDERR,
    STDIN,
    STDOUT,
    U32,
    WINDOW,
    Bytes,
    Frame,
    Type,
    encode,
    header,
    senseless,
)
from encamp.guest.messages import Exit
from encamp.model.errors import EncampError

SIGKILL = 9
ALONE = b"\1"
"""After a signal's number: it is for the command's first process, and not for all of them."""


class Line(Protocol):
    """What a stream needs of its channel."""

    def send(self, *pieces: Bytes) -> None: ...

    async def drained(self) -> None: ...


class Output:
    """What a command prints on one of its two outputs, in the chunks in which it arrives.

    The machine may send only as much as was granted, and more is granted only as chunks are taken
    from here: a slow reader slows the command down, and memory stays bounded.
    """

    def __init__(self, line: Line, stream: int, channel: int) -> None:
        self._line = line
        self._stream = stream
        self._channel = channel
        self._chunks: deque[bytes] = deque()
        self._credit = CREDIT_START
        self._taken = 0
        self._ended = False
        self._discarding = False
        self._error: EncampError | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def read(self) -> bytes:
        """The next chunk; empty at the end. One reader at a time."""
        while not self._chunks:
            if self._ended:
                if self._error is not None:
                    raise self._error
                return b""
            if self._waiter is not None:
                raise RuntimeError("two readers of one output")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        chunk = self._chunks.popleft()
        self._grant(len(chunk))
        return chunk

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[bytes]:
        while chunk := await self.read():
            yield chunk

    def discard(self) -> None:
        """Nobody will read: let the command print into the void instead of stopping it."""
        self._discarding = True
        while self._chunks:
            self._grant(len(self._chunks.popleft()))

    def _grant(self, count: int) -> None:
        self._taken += count
        if self._taken >= CREDIT_BATCH and not self._ended:
            self._credit += self._taken
            self._line.send(
                encode(Type.CREDIT, self._stream, U32.pack(self._taken), channel=self._channel)
            )
            self._taken = 0

    def take(self, data: bytes) -> None:
        if self._ended or len(data) > self._credit:
            raise senseless("more output than it may send")
        self._credit -= len(data)
        if self._discarding:
            self._grant(len(data))
            return
        self._chunks.append(data)
        self._wake()

    def finish(self, error: EncampError | None = None) -> None:
        if not self._ended:
            self._ended = True
            self._error = error
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Stream:
    """A command in the machine."""

    def __init__(self, line: Line, number: int) -> None:
        self._line = line
        self._number = number
        self.stdout = Output(line, number, STDOUT)
        self.stderr = Output(line, number, STDERR)
        self._credit = CREDIT_START
        self._credited: asyncio.Future[None] | None = None
        self._input_ended = False
        self._unread = False
        loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[Exit] = loop.create_future()
        self._exit.add_done_callback(_heed)

    @property
    def unread(self) -> bool:
        """Nobody reads the command's stdin any more: what is still written to it is dropped."""
        return self._unread or self._exit.done()

    async def write(self, data: Bytes) -> None:
        """Give the command something to read; returns when all of it is on its way.

        One writer at a time.
        """
        if self._input_ended:
            raise RuntimeError("the end of the input was already said")
        view = memoryview(data).cast("B")
        if not view.readonly:
            # The tail may be sent only after this returned, when a buffer may hold the next piece.
            view = memoryview(bytes(view))
        while view:
            if self._exit.done():
                self._exit.result()
                return
            if self._unread:
                return
            if self._credit == 0:
                self._credited = asyncio.get_running_loop().create_future()
                try:
                    await self._credited
                finally:
                    self._credited = None
                continue
            count = min(len(view), self._credit, PAYLOAD_LIMIT)
            self._credit -= count
            self._line.send(header(Type.DATA, STDIN, self._number, count), view[:count])
            view = view[count:]
            await self._line.drained()

    async def end(self) -> None:
        """The command's stdin ends here."""
        if not self._input_ended:
            self._input_ended = True
            if not self._exit.done():
                self._line.send(encode(Type.END, self._number, channel=STDIN))
                await self._line.drained()

    def go(self) -> None:
        """Let a command begin that is held."""
        if not self._exit.done():
            self._line.send(encode(Type.GO, self._number))

    def signal(self, number: int, *, alone: bool = False) -> None:
        """Send a signal to the command and all of its process group, or to its first process."""
        if not self._exit.done():
            payload = U32.pack(number) + (ALONE if alone else b"")
            self._line.send(encode(Type.SIGNAL, self._number, payload))

    def resize(self, rows: int, columns: int) -> None:
        if not self._exit.done():
            self._line.send(encode(Type.RESIZE, self._number, WINDOW.pack(rows, columns)))

    def abandon(self) -> None:
        """Kill the command and forget what it prints."""
        self.stdout.discard()
        self.stderr.discard()
        self.signal(SIGKILL)

    async def wait(self) -> Exit:
        """How it ended. Comes after all its output, which must be read (or discarded) for that."""
        return await asyncio.shield(self._exit)

    def receive(self, frame: Frame) -> None:
        """Act on a frame from the guest."""
        if frame.type == Type.DATA:
            self._output(frame.channel).take(frame.payload)
        elif frame.type == Type.CREDIT:
            self._credit += U32.unpack(frame.payload)[0]
            if self._credit > CREDIT_LIMIT:
                raise senseless("more room for input than there can be")
            self._wake_writer()
        elif frame.type == Type.END and frame.channel == STDIN:
            self._unread = True
            self._wake_writer()
        elif frame.type == Type.END:
            self._output(frame.channel).finish()
        else:
            ended = Exit.decode(frame.payload)
            self.stdout.finish()
            self.stderr.finish()
            if not self._exit.done():
                self._exit.set_result(ended)
            self._wake_writer()

    def fail(self, error: EncampError) -> None:
        self.stdout.finish(error)
        self.stderr.finish(error)
        if not self._exit.done():
            self._exit.set_exception(error)
        self._wake_writer()

    def _output(self, channel: int) -> Output:
        return self.stdout if channel == STDOUT else self.stderr

    def _wake_writer(self) -> None:
        if self._credited is not None and not self._credited.done():
            self._credited.set_result(None)


def _heed(future: asyncio.Future[Exit]) -> None:
    """A failure that nobody waits for is no mistake: all streams of a lost machine fail alike."""
    if not future.cancelled():
        future.exception()
