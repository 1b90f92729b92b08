"""One who has come to a conversation on its host, for as long as the connection lasts."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

from encamp.door.frames import Failure
from encamp.meeting.flow import Bell, Incoming, Source
from encamp.meeting.frames import (
    STDERR,
    STDOUT,
    Began,
    Broken,
    Bye,
    Ended,
    EndOf,
    Enough,
    Failed,
    FromClient,
    Gone,
    Got,
    Piece,
    Refused,
    Resize,
    Role,
    Said,
    Show,
    Signal,
    Want,
    Welcome,
    decode_from_client,
    is_files_out,
    senseless,
)
from encamp.meeting.line import Line
from encamp.meeting.sending import Sender, acknowledge
from encamp.model.errors import EncampError

LONGEST_GRACE = 60.0
RESPONSIBLE = frozenset({Role.RUN, Role.BRING})
"""The roles of the one client that a job depends on."""

Mark = Want | type[Began] | type[Ended]
"""What was told already."""


class Visited(Protocol):
    """What a visitor sees of a conversation."""

    changed: Bell
    """Rings when there is something new to tell."""
    incoming: dict[int, Incoming]
    sources: dict[int, Source]
    wanted: dict[int, Want]
    has_begun: bool
    final: Ended | Failed | None
    signals: int

    def signal(self, signal: Signal) -> None: ...

    def resize(self, rows: int, columns: int) -> None: ...


class Visitor:
    def __init__(self, visited: Visited, line: Line, show: Show) -> None:
        self.session = show.session
        self.role = show.role
        self.said_bye = False
        self.fetched = False
        """It has put away all files that there are."""
        self.grace: float | None = None
        """Seconds within which it may come back, as the agent says that passed it on."""
        self._visited = visited
        self._line = line
        self._has = show.has
        self._senders: dict[int, Sender] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._told: set[Mark] = set()
        self._failure: EncampError | None = None

    def welcome(self) -> None:
        """Before anything else is said to it."""
        streams = self._visited.incoming if self.role in RESPONSIBLE else {}
        has = {number: incoming.has for number, incoming in streams.items()}
        self._line.send(Welcome(has=has, signals=self._visited.signals))
        acknowledge(self._line, streams)

    async def run(self) -> None:
        telling = asyncio.create_task(self._tell())
        listening = asyncio.create_task(self._listen())
        try:
            await asyncio.wait({telling, listening}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = {telling, listening, *self._sending}
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in (telling, listening):
            if not task.cancelled():
                self._explain(task.exception())
        await self._line.close()

    def say(self, said: Said) -> None:
        if not self._line.crowded:
            self._line.send(said)

    def got(self, number: int, offset: int) -> None:
        self._line.send(Got(number, offset))

    def replaced(self) -> None:
        """The same client has come again."""
        self._line.abort()

    # ── what there is to tell ────────────────────────────────────────────────────────────────────

    async def _tell(self) -> None:
        while self._failure is None:
            # Nothing is waited for between looking and listening for the bell.
            self._look()
            await self._visited.changed.wait()
        raise self._failure

    def _look(self) -> None:
        visited = self._visited
        for number, source in list(visited.sources.items()):
            if number not in self._senders and self._wants(number):
                self._start(number, source)
        if self.role in RESPONSIBLE:
            for want in list(visited.wanted.values()):
                self._once(want, want)
            if visited.has_begun:
                self._once(Began, Began())
        if visited.final is not None and not self._sending:
            # Whoever hears this has heard everything else.
            self._once(Ended, visited.final)

    def _wants(self, number: int) -> bool:
        match self.role:
            case Role.RUN:
                return True
            case Role.BRING:
                return False
            case Role.WATCH | Role.FOLLOW:
                return number in (STDOUT, STDERR)
            case Role.FETCH:
                return is_files_out(number) and self._visited.final is not None

    def _once(self, mark: Mark, said: Want | Began | Ended | Failed) -> None:
        if mark not in self._told:
            self._told.add(mark)
            self._line.send(said)

    def _start(self, number: int, source: Source) -> None:
        sender = Sender(self._line, number, source, self._has.get(number, 0))
        self._senders[number] = sender
        task = asyncio.create_task(sender.run(to_the_end=self.role is not Role.WATCH))
        self._sending.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, EncampError):
            self._failure = error
        self._visited.changed.ring()

    # ── what it says ─────────────────────────────────────────────────────────────────────────────

    async def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while not self._over:
                self._take(decode_from_client(await self._line.receive()))

    @property
    def _over(self) -> bool:
        return self.said_bye or self.grace is not None

    def _take(self, said: FromClient) -> None:
        match said:
            case Got():
                self._sender(said.stream).got(said.offset)
            case Enough():
                self._sender(said.stream).refuse()
            case Bye():
                self.said_bye = True
                self.fetched = said.fetched and self._has_files()
            case Gone():
                self.grace = min(max(0.0, said.grace), LONGEST_GRACE)
            case _ if self.role not in RESPONSIBLE:
                raise senseless("The client", "something to a job that it only watches")
            case Piece():
                self._stream(said.stream).receive(said.offset, said.data)
            case EndOf():
                self._stream(said.stream).finish(said.length)
            case Broken():
                self._stream(said.stream).fail(said.failure.error())
            case Signal():
                self._visited.signal(said)
            case Resize():
                self._visited.resize(said.rows, said.columns)
            case Show():
                raise senseless("The client", "a ticket in the middle of a conversation")

    def _sender(self, number: int) -> Sender:
        if number not in self._senders:
            raise senseless("The client", "thanks for what it was never sent")
        return self._senders[number]

    def _has_files(self) -> bool:
        """Were all files taken that were left, and are there any?"""
        numbers = [number for number in self._visited.sources if is_files_out(number)]
        return bool(numbers) and all(
            number in self._senders and self._senders[number].taken for number in numbers
        )

    def _stream(self, number: int) -> Incoming:
        if number not in self._visited.incoming:
            raise senseless("The client", "bytes that nobody asked it for")
        return self._visited.incoming[number]

    def _explain(self, error: BaseException | None) -> None:
        """To one who broke the rules, or cannot be given what it wants."""
        if isinstance(error, EncampError):
            self._line.send(Refused(Failure.of(error)))
        elif error is not None and not isinstance(error, OSError):
            raise error
