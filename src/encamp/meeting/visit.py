"""One connection of a client to a conversation on a host."""

from __future__ import annotations

import asyncio
from typing import Protocol

from encamp.meeting.flow import Bell, Incoming, Outgoing
from encamp.meeting.frames import (
    Began,
    Broken,
    Ended,
    EndOf,
    Enough,
    Failed,
    FromHost,
    Got,
    Piece,
    Refused,
    Said,
    Signal,
    Want,
    Welcome,
    decode_from_host,
    senseless,
)
from encamp.meeting.line import Line
from encamp.meeting.sending import Sender, acknowledge
from encamp.model.errors import Code, EncampError

PATIENCE = 30.0
"""Seconds that a host may take to find what a ticket is for: it may be about to begin."""


class Visiting(Protocol):
    """What a connection needs of the client whose it is."""

    changed: Bell
    outgoing: dict[int, Outgoing]
    incoming: dict[int, Incoming]
    signals: list[Signal]
    done: bool

    def began(self) -> None: ...

    def said(self, said: Said) -> None: ...

    def wanted(self, want: Want) -> None: ...

    def stream(self, number: int) -> Incoming: ...

    def heard_end(self) -> None: ...

    def ended(self, final: Ended | Failed) -> None: ...


class Visit:
    def __init__(self, client: Visiting, line: Line) -> None:
        self._client = client
        self._line = line
        self._welcome = Welcome()
        self._senders: dict[int, Sender] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None

    async def welcome(self) -> None:
        """Wait until the ticket was looked at."""
        try:
            async with asyncio.timeout(PATIENCE):
                said = decode_from_host(await self._line.receive())
        except TimeoutError:
            raise EncampError(
                Code.UNREACHABLE, "The host's agent does not answer.", transient=True
            ) from None
        if isinstance(said, Refused):
            raise said.failure.error()
        if not isinstance(said, Welcome):
            raise senseless("The host", "something else than an answer to a ticket")
        self._welcome = said

    async def run(self) -> None:
        """Until the client is done. Raises EOFError when the connection has ended."""
        client = self._client
        client.signals[:] = [one for one in client.signals if one.serial > self._welcome.signals]
        for signal in client.signals:
            self._line.send(signal)
        acknowledge(self._line, client.incoming)
        for number, incoming in client.incoming.items():
            if incoming.closed:
                self._line.send(Enough(number))
        telling = asyncio.create_task(self._tell())
        listening = asyncio.create_task(self._listen())
        try:
            await asyncio.wait({telling, listening}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = {telling, listening, *self._sending}
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in (listening, telling):
            if not task.cancelled():
                task.result()

    async def _tell(self) -> None:
        while not self._client.done:
            for number, source in self._client.outgoing.items():
                if number not in self._senders:
                    self._start(number, source)
            await self._client.changed.wait()
            if self._failure is not None:
                raise self._failure

    def _start(self, number: int, source: Outgoing) -> None:
        sender = Sender(self._line, number, source, self._welcome.has.get(number, 0))
        self._senders[number] = sender
        task = asyncio.create_task(sender.run())
        self._sending.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()
            self._client.changed.ring()

    async def _listen(self) -> None:
        while not self._client.done:
            self._take(decode_from_host(await self._line.receive()))

    def _take(self, said: FromHost) -> None:
        client = self._client
        match said:
            case Piece():
                client.stream(said.stream).receive(said.offset, said.data)
            case Got():
                self._sender(said.stream).got(said.offset)
            case EndOf():
                client.stream(said.stream).finish(said.length)
                client.heard_end()
            case Broken():
                client.stream(said.stream).fail(said.failure.error())
                client.heard_end()
            case Enough():
                self._sender(said.stream).refuse()
            case Said():
                client.said(said)
            case Want():
                client.wanted(said)
            case Began():
                client.began()
            case Ended() | Failed():
                client.ended(said)
            case Refused():
                raise said.failure.error()
            case Welcome():
                raise senseless("The host", "a second welcome")

    def _sender(self, number: int) -> Sender:
        if number not in self._senders:
            raise senseless("The host", "thanks for what it was never sent")
        return self._senders[number]
