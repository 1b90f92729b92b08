"""The client's side of a conversation: its own streams, files and signals, for a job elsewhere."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Protocol

from encamp.door.questions import Ticket
from encamp.meeting.connecting import connect
from encamp.meeting.flow import Bell, Incoming, Outgoing
from encamp.meeting.frames import (
    STDERR,
    STDIN,
    STDOUT,
    Bye,
    Ended,
    Enough,
    Failed,
    Got,
    Resize,
    Role,
    Said,
    Show,
    Signal,
    Want,
    file_number,
    files_in,
    is_files_out,
    senseless,
)
from encamp.meeting.line import Line
from encamp.meeting.visit import Visit
from encamp.model.errors import Code, EncampError
from encamp.model.job import Outcome

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
"""Seconds between two tries to connect, at first and at last."""
RETURN = 60.0
"""Seconds for which a lost connection is tried to be made again."""
FIRST = 15.0
"""Seconds for which the first one is."""
RENEWAL = 2.0
"""Seconds that asking for a ticket may take."""


class Streams(Protocol):
    """Where a command's input comes from and its output goes."""

    async def read(self) -> bytes:
        """The next piece of input; empty at its end."""

    async def write(self, data: bytes) -> None:
        """Take a piece of standard output. Raises BrokenPipeError if nobody wants it."""

    async def write_error(self, data: bytes) -> None: ...


class Files(Protocol):
    """The client's files."""

    def pack(self, number: int, name: str) -> AsyncIterator[bytes]:
        """The archive of one of the job's inputs, with this name for what is in it."""

    async def unpack(self, number: int, pieces: AsyncIterable[bytes]) -> None:
        """Take the archive of one of its outputs. Whatever is not wanted of it is left."""


class Client:
    """One conversation, over as many connections as it takes."""

    def __init__(
        self,
        ticket: Ticket,
        role: Role = Role.RUN,
        *,
        streams: Streams,
        files: Files,
        window: tuple[int, int] | None = None,
    ) -> None:
        self.on_begin: Callable[[], None] = lambda: None
        self.on_said: Callable[[str, float | None], None] = lambda what, fraction: None
        self.on_break: Callable[[EncampError], None] = lambda error: None
        """Told when the connection is lost, and will be made again."""
        self.renew: Callable[[], Awaitable[Ticket]] | None = None
        """Asks for the ticket anew: an agent that was started again may be met at another port."""
        self.is_fetched: Callable[[], bool] = lambda: False
        """Asked when all files that a job left have come: are they where they belong?"""
        self.ticket = ticket
        self.role = role
        self.changed = Bell()
        """Rings when there is another stream to send, or nothing more to hear."""
        self.outgoing: dict[int, Outgoing] = {}
        self.incoming: dict[int, Incoming] = {}
        self.signals: list[Signal] = []
        """Those that the host may not have yet."""
        self.done = False
        self.told_by_host = False
        """Has the host said how it ended, or why not?"""
        self._outcome: Outcome | None = None
        self._failure: EncampError | None = None
        self._streams = streams
        self._files = files
        self._window = window
        self._session = secrets.token_hex(16)
        self._serial = 0
        self._has_begun = False
        self._line: Line | None = None
        self._work: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> Outcome | None:
        """Until all was said that it has come for: how the job ended, if that is part of it. An
        error of the host's is raised, and one of the connection's if it cannot be made again."""
        fetched = False
        try:
            if self.role is Role.RUN:
                self._begin(STDIN, self._read_input(self._out(STDIN)))
            if self.role in (Role.RUN, Role.WATCH, Role.FOLLOW):
                for number, write in (
                    (STDOUT, self._streams.write),
                    (STDERR, self._streams.write_error),
                ):
                    self._begin(number, self._write(number, self._in(number), write))
            await self._converse()
            for number, task in self._work.items():
                if number in self.incoming:
                    await task
            if self._failure is not None:
                raise self._failure
            fetched = self.role is Role.FETCH and self.is_fetched()
            return self._outcome
        finally:
            for task in self._work.values():
                task.cancel()
            if self._work:
                await asyncio.wait(self._work.values())
            if self._line is not None:
                self._line.send(Bye(fetched))
                await self._line.close()

    def signal(self, number: int) -> None:
        self._serial += 1
        signal = Signal(self._serial, number)
        self.signals.append(signal)
        self._send(signal)

    def resize(self, rows: int, columns: int) -> None:
        self._window = rows, columns
        self._send(Resize(rows, columns))

    def _send(self, value: Signal | Resize | Enough | Got) -> None:
        if self._line is not None:
            self._line.send(value)

    # ── connections ──────────────────────────────────────────────────────────────────────────────

    async def _converse(self) -> None:
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + FIRST, FIRST_PAUSE
        while not self.done:
            try:
                await self._visit()
                continue
            except (EOFError, OSError):
                error = EncampError(
                    Code.UNREACHABLE,
                    f"The connection to host {self.ticket.host} was lost.",
                    transient=True,
                )
            except EncampError as failure:
                if not failure.transient:
                    raise
                error = failure
            if self._line is not None:
                # It was one that worked.
                self._line = None
                until, pause = loop.time() + RETURN, FIRST_PAUSE
                self.on_break(error)
            elif loop.time() > until:
                raise error
            await asyncio.sleep(pause)
            if pause > FIRST_PAUSE:
                await self._renew()
            pause = min(LONGEST_PAUSE, pause * 1.5)

    async def _renew(self) -> None:
        """Whoever gives out tickets may be away as well; the host is still where it was, then."""
        if self.renew is not None:
            with suppress(EncampError, TimeoutError):
                async with asyncio.timeout(RENEWAL):
                    self.ticket = await self.renew()

    async def _visit(self) -> None:
        line = await connect(self.ticket)
        try:
            line.send(
                Show(
                    id=self.ticket.id,
                    secret=self.ticket.secret,
                    session=self._session,
                    role=self.role,
                    has={number: stream.has for number, stream in self.incoming.items()},
                    window=self._window,
                )
            )
            visit = Visit(self, line)
            await visit.welcome()
            self._line = line
            await visit.run()
        except BaseException:
            line.abort()
            raise

    # ── what the host says ───────────────────────────────────────────────────────────────────────

    def began(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self.on_begin()
        if self.role is Role.BRING:
            self._finish()

    def said(self, said: Said) -> None:
        self.on_said(said.what, said.fraction)

    def wanted(self, want: Want) -> None:
        number = files_in(want.number)
        if number not in self.outgoing:
            self._begin(number, self._pack(want, self._out(number)))

    def stream(self, number: int) -> Incoming:
        """Where a piece belongs. The archive of an output makes itself known by its first one."""
        if number not in self.incoming:
            if not is_files_out(number):
                raise senseless("The host", "bytes that nobody asked it for")
            self._begin(number, self._unpack(number, self._in(number)))
        return self.incoming[number]

    def heard_end(self) -> None:
        """Of a stream."""
        if self.role is Role.WATCH and all(stream.at_end for stream in self.incoming.values()):
            self._finish()

    def ended(self, final: Ended | Failed) -> None:
        self.told_by_host = True
        if isinstance(final, Ended):
            self._outcome = final.outcome
        else:
            self._failure = final.failure.error()
        self._finish()

    def _finish(self) -> None:
        self.done = True
        self.changed.ring()

    # ── what is done for it ──────────────────────────────────────────────────────────────────────

    def _begin(self, number: int, work: Coroutine[object, object, None]) -> None:
        self._work[number] = asyncio.create_task(work)

    def _out(self, number: int) -> Outgoing:
        made = self.outgoing[number] = Outgoing()
        self.changed.ring()
        return made

    def _in(self, number: int) -> Incoming:
        made = self.incoming[number] = Incoming()
        made.on_taken = lambda: self._send(Got(number, made.taken))
        return made

    async def _read_input(self, outgoing: Outgoing) -> None:
        with suppress(BrokenPipeError):
            while data := await self._streams.read():
                await outgoing.write(data)
        outgoing.finish()

    async def _write(
        self, number: int, incoming: Incoming, write: Callable[[bytes], Awaitable[None]]
    ) -> None:
        try:
            while data := await incoming.read():
                await write(data)
        except BrokenPipeError:
            # What a pipe's writer gets here, the command gets there.
            self._close(number)

    async def _pack(self, want: Want, outgoing: Outgoing) -> None:
        failure: EncampError | None = None
        try:
            async for piece in self._files.pack(want.number, want.name):
                await outgoing.write(piece)
        except EncampError as error:
            failure = error
        except BrokenPipeError:
            pass
        outgoing.finish(failure)

    async def _unpack(self, number: int, incoming: Incoming) -> None:
        try:
            await self._files.unpack(file_number(number), _pieces(incoming))
        except EncampError as error:
            self._failure = self._failure or error
        if not incoming.over:
            self._close(number)

    def _close(self, number: int) -> None:
        self.incoming[number].close()
        self._send(Enough(number))


async def _pieces(incoming: Incoming) -> AsyncIterator[bytes]:
    while data := await incoming.read():
        yield data
