"""Streams of bytes between two sides, bounded on their way, that outlast the connection.

An `Outgoing` keeps what the other side has not taken; an `Incoming` what was not taken out of it.
Neither knows of a connection: whoever has one reads from the first where the other side is, and
puts into the second what came.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from encamp.meeting.frames import WINDOW, senseless
from encamp.model.errors import EncampError


class Bell:
    """Wakes all who wait for something to change."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)


class Source(Protocol):
    """A stream as its senders see it: there may be several, each somewhere else in it."""

    bell: Bell
    """Rings when there is more, or no more."""

    @property
    def start(self) -> int:
        """What comes before is gone."""

    @property
    def end(self) -> int:
        """So far it goes."""

    @property
    def over(self) -> bool:
        """Nothing is added any more."""

    @property
    def broken(self) -> EncampError | None:
        """Why it does not go on to its end."""

    @property
    def refused(self) -> bool:
        """The other side takes no more of it."""

    def read(self, at: int, most: int) -> bytes: ...

    def got(self, offset: int) -> None:
        """The other side has taken all up to there."""

    def refuse(self) -> None:
        """The other side takes no more."""


class Outgoing:
    """Kept in memory until the other side has it. Whoever writes waits for that."""

    def __init__(self, window: int = WINDOW) -> None:
        self.bell = Bell()
        self.start = 0
        self.end = 0
        self.over = False
        self.broken: EncampError | None = None
        self._window = window
        self._room = Bell()
        self._refused = False
        self._pieces: deque[memoryview] = deque()

    async def write(self, data: bytes) -> None:
        """Returns when there was room for all of it. Raises BrokenPipeError if the other side
        takes no more."""
        if self.over:
            raise RuntimeError("the end of the stream was said already")
        view = memoryview(data)
        while view:
            if self._refused:
                raise BrokenPipeError
            room = self._window - (self.end - self.start)
            if room <= 0:
                await self._room.wait()
                continue
            piece, view = view[:room], view[room:]
            self._pieces.append(piece)
            self.end += len(piece)
            self.bell.ring()

    def finish(self, broken: EncampError | None = None) -> None:
        if not self.over:
            self.over = True
            self.broken = broken
            self.bell.ring()

    def read(self, at: int, most: int) -> bytes:
        skipped = at - self.start
        found: list[memoryview] = []
        for piece in self._pieces:
            if skipped >= len(piece):
                skipped -= len(piece)
                continue
            part = piece[skipped : skipped + most]
            skipped = 0
            found.append(part)
            most -= len(part)
            if not most:
                break
        return b"".join(found)

    def got(self, offset: int) -> None:
        if offset > self.end:
            raise senseless("The other side", "thanks for what it was never sent")
        while self._pieces and self.start + len(self._pieces[0]) <= offset:
            self.start += len(self._pieces.popleft())
        if self._pieces and offset > self.start:
            self._pieces[0] = self._pieces[0][offset - self.start :]
            self.start = offset
        self._room.ring()
        self.bell.ring()

    def refuse(self) -> None:
        self._refused = True
        self._pieces.clear()
        self.start = self.end
        self._room.ring()
        self.bell.ring()

    @property
    def refused(self) -> bool:
        return self._refused

    async def taken(self) -> None:
        """Returns when the other side has all of it."""
        while not (self.over and (self.start == self.end or self._refused)):
            await self.bell.wait()


class Incoming:
    """What came and was not taken yet."""

    def __init__(self, window: int = WINDOW) -> None:
        self.has = 0
        """Bytes that have come."""
        self.taken = 0
        """Bytes that were given to the reader."""
        self.on_taken: Callable[[], None] = lambda: None
        """Called when the other side may be told how much was taken."""
        self.closed = False
        """Nobody reads it any more."""
        self._window = window
        self._told = 0
        self._pieces: deque[bytes] = deque()
        self._length: int | None = None
        self._broken: EncampError | None = None
        self._bell = Bell()

    def receive(self, offset: int, data: bytes) -> None:
        """A piece, which may begin with what is here already."""
        if self.closed:
            self.has = max(self.has, offset + len(data))
            self._took(self.has - self.taken)
            return
        if offset > self.has:
            raise senseless("The other side", "bytes with a gap before them")
        new = data[self.has - offset :]
        if self._length is not None and self.has + len(new) > self._length:
            raise senseless("The other side", "more than it said there was")
        if self.has + len(new) - self.taken > self._window:
            raise senseless("The other side", "more than it was allowed to")
        if not new:
            return
        self.has += len(new)
        self._pieces.append(new)
        self._bell.ring()

    def finish(self, length: int) -> None:
        if self.closed:
            self.has = self.taken = max(self.has, length)
        elif length != self.has or self._length not in (None, length):
            raise senseless("The other side", "an end where none can be")
        self._length = length
        self._bell.ring()
        if self.taken == length and self._told != length:
            self._told = length
            self.on_taken()

    def fail(self, error: EncampError) -> None:
        """It does not go on to its end. What has come before is read first."""
        if self._length is None and self._broken is None:
            self._broken = error
            self._bell.ring()

    async def read(self) -> bytes:
        """The next piece; empty at the end. One reader at a time."""
        while not self._pieces:
            if self._broken is not None:
                raise self._broken
            if self._length is not None:
                return b""
            await self._bell.wait()
        piece = self._pieces.popleft()
        self._took(len(piece))
        return piece

    def close(self) -> None:
        """Nobody reads any more: what is left, and what comes, goes nowhere."""
        self.closed = True
        while self._pieces:
            self._took(len(self._pieces.popleft()))

    @property
    def over(self) -> bool:
        """All of it has come and was taken."""
        return self._length is not None and self.taken == self._length

    @property
    def at_end(self) -> bool:
        """All of it has come, or no more will."""
        return self._length is not None or self._broken is not None

    def _took(self, count: int) -> None:
        self.taken += count
        # The other side need not hear of every byte, but of the last ones before it has to wait.
        if self.taken - self._told >= self._window // 4 or self.taken == self._length:
            self._told = self.taken
            self.on_taken()
