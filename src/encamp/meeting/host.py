"""The host's side of a conversation: what a job reads, prints, brings and leaves, for its client.

One that is attached has one client, who may lose its connection and come back; if it vanishes, the
job ends. One that is detached keeps everything in files, and any number may come and read.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from encamp.door.frames import Failure
from encamp.meeting.flow import Incoming, Outgoing
from encamp.meeting.frames import (
    STDERR,
    STDIN,
    STDOUT,
    Ended,
    Failed,
    Role,
    Said,
    Show,
    Signal,
    Want,
    files_in,
    files_out,
)
from encamp.meeting.kept import Kept, KeptStream
from encamp.meeting.line import UNREAD, Line
from encamp.meeting.reception import Reception
from encamp.meeting.visitor import RESPONSIBLE, Visitor
from encamp.model.errors import Code, EncampError
from encamp.model.job import Outcome

T = TypeVar("T")

ARRIVAL = 60.0
"""Seconds within which the client of a job has to come."""
RETURN = 60.0
"""Seconds within which it has to come back if nobody knows why its connection ended: the agent
that passed it on may have been restarted."""
LAST_WORD = 600.0
"""Seconds that a client has to take the rest after the end, if it takes none of it meanwhile."""
WATCHERS_LEAVE = 2.0
"""Seconds that those who watch have for the same; the rest they find in the files."""


class VanishedError(EncampError):
    """Whoever wanted it is gone: nobody wants it done elsewhere, or again."""


class Conversation(Reception):
    """Everything that is said about one command. A `Streams` and a `Progress` for it."""

    def __init__(self, digest: str, kept: Kept | None = None, *, arrival: float = ARRIVAL) -> None:
        """`digest`: of the secret of its ticket. With a place to keep things in: detached."""
        super().__init__(digest)
        self.window: tuple[int, int] | None = None
        """Of the client's terminal."""
        self.on_signal: Callable[[int], None] = lambda number: None
        self.on_resize: Callable[[int, int], None] = lambda rows, columns: None
        self.on_trouble: Callable[[EncampError], None] = lambda error: None
        """Told if what a detached job prints cannot be kept."""
        self._kept = kept
        self._arrival = arrival
        self._loop = asyncio.get_running_loop()
        self._session = ""
        self._client: Visitor | None = None
        self._arrived = asyncio.Event()
        self._vanished = asyncio.Event()
        self._absence: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._said: Said | None = None
        self._stdout = self._output(STDOUT)
        self._stderr = self._output(STDERR)
        if kept is None:
            self._input(STDIN)
            self._expect(arrival)

    # ── for whoever carries the command out ──────────────────────────────────────────────────────

    @asynccontextmanager
    async def serve(self, listener: socket.socket) -> AsyncIterator[None]:
        """Take those who come to this socket, until the end of the block."""
        server = await asyncio.start_unix_server(self._opened, sock=listener, limit=UNREAD)
        try:
            yield
        finally:
            server.close()
            if self._absence is not None:
                self._absence.cancel()
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            # The connections that were just broken off are closed in the loop's next round.
            await asyncio.sleep(0)

    async def arrived(self) -> None:
        """Returns when the client is there."""
        if self._kept is not None and self._client is None and self._absence is None:
            self._expect(self._arrival)
        waits = [asyncio.create_task(event.wait()) for event in (self._arrived, self._vanished)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.wait(waits)
        if not self._arrived.is_set():
            raise self._gone()

    @property
    def vanished(self) -> bool:
        """Its client went away, or never came, and will not."""
        return self._vanished.is_set()

    async def attend(self, work: Coroutine[object, object, T]) -> T:
        """Do it; unless the client of an attached job goes away over it."""
        if self._kept is not None:
            return await work
        task = asyncio.create_task(work)
        vanishing = asyncio.create_task(self._vanished.wait())
        try:
            await asyncio.wait({task, vanishing}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
                if task.cancelled():
                    raise self._gone()
            return task.result()
        finally:
            for one in (task, vanishing):
                one.cancel()
            await asyncio.wait({task, vanishing})

    async def read(self) -> bytes:
        if self._kept is not None:
            return b""
        return await self.incoming[STDIN].read()

    async def write(self, data: bytes) -> None:
        await self._print(self._stdout, data)

    async def write_error(self, data: bytes) -> None:
        await self._print(self._stderr, data)

    def update(self, what: str, fraction: float | None = None) -> None:
        """Tell what is being done. Called from any thread."""
        with suppress(RuntimeError):  # The loop has just ended.
            self._loop.call_soon_threadsafe(self._say, Said(what, fraction))

    async def bring(self, number: int, name: str) -> AsyncGenerator[bytes, None]:
        """The archive of one of the inputs, which the client packs under this name."""
        incoming = self._input(files_in(number))
        self.wanted[number] = Want(number, name)
        self.changed.ring()
        try:
            await self.arrived()
            while piece := await incoming.read():
                yield piece
        finally:
            self.wanted.pop(number, None)
            incoming.close()

    def send(self, number: int) -> Outgoing | KeptStream:
        """The stream for the archive of one of the outputs, to be written and finished."""
        made = self._output(files_out(number))
        self.changed.ring()
        return made

    def began(self) -> None:
        self.has_begun = True
        self.changed.ring()

    async def ended(self, outcome: Outcome) -> None:
        """Tell how it ended; returns when the client knows, or is not going to."""
        await self._settle(Ended(outcome))

    async def failed(self, error: EncampError) -> None:
        for number, source in self.sources.items():
            if number not in (STDOUT, STDERR) and isinstance(source, Outgoing | KeptStream):
                source.finish(error)
        await self._settle(Failed(Failure.of(error)))

    async def _settle(self, final: Ended | Failed) -> None:
        for source in self.sources.values():
            if isinstance(source, Outgoing | KeptStream):
                source.finish()
        if self._kept is not None:
            self._kept.settle(final)
        self.final = final
        self.changed.ring()
        if self._kept is None:
            await self._last_word()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(WATCHERS_LEAVE):
                while self.visitors:
                    await self.changed.wait()

    async def _last_word(self) -> None:
        """As long as the client takes anything, it is given time for the rest."""
        taken = -1
        while not self._vanished.is_set() and taken != (taken := self._taken()):
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORD):
                    await self._vanished.wait()

    def _taken(self) -> int:
        return sum(source.start for source in self.sources.values())

    async def _print(self, stream: Outgoing | KeptStream, data: bytes) -> None:
        try:
            await stream.write(data)
        except EncampError as error:
            self.on_trouble(error)

    def _say(self, said: Said) -> None:
        self._said = said
        if self._client is not None:
            self._client.say(said)

    def _output(self, number: int) -> Outgoing | KeptStream:
        made: Outgoing | KeptStream
        made = Outgoing() if self._kept is None else self._kept.create(number)
        self.sources[number] = made
        return made

    def _input(self, number: int) -> Incoming:
        incoming = self.incoming[number] = Incoming()

        def taken() -> None:
            if self._client is not None:
                self._client.got(number, incoming.taken)

        incoming.on_taken = taken
        return incoming

    # ── who comes and goes ───────────────────────────────────────────────────────────────────────

    def _opened(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self.take(Line(reader, writer)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def signal(self, signal: Signal) -> None:
        if signal.serial > self.signals:
            self.signals = signal.serial
            self.on_signal(signal.number)

    def resize(self, rows: int, columns: int) -> None:
        self.window = rows, columns
        self.on_resize(rows, columns)

    def check(self, show: Show) -> None:
        attached = self._kept is None
        if attached and show.role is not Role.RUN:
            raise EncampError(
                Code.WRONG_STATE,
                "What this job prints goes to whoever runs it; nothing of it is kept.",
                "Jobs that are run with --detach keep what they print.",
            )
        if not attached and show.role is Role.RUN:
            raise EncampError(Code.WRONG_STATE, "This job is detached: it takes no input.")
        if show.role in RESPONSIBLE:
            if self._session not in ("", show.session):
                raise EncampError(Code.WRONG_STATE, "Somebody else runs this job already.")
            if self._vanished.is_set():
                raise self._gone()

    def came(self, visitor: Visitor, show: Show) -> None:
        if visitor.role not in RESPONSIBLE:
            return
        self._session = visitor.session
        if self._client is not None:
            # Its former connection is dead, or it would not have made another.
            self._client.replaced()
        self._client = visitor
        if self._absence is not None:
            self._absence.cancel()
        self._arrived.set()
        if show.window is not None and show.window != self.window:
            self.resize(*show.window)
        if self._said is not None:
            visitor.say(self._said)

    def left(self, visitor: Visitor) -> None:
        if visitor is not self._client:
            return
        self._client = None
        if visitor.said_bye:
            self._vanish()
        else:
            self._expect(RETURN if visitor.grace is None else visitor.grace)

    def fetched(self) -> None:
        if self._kept is not None:
            self._kept.note_fetched()

    def _expect(self, seconds: float) -> None:
        """If nobody is there after so long, nobody will be."""
        if self._absence is not None:
            self._absence.cancel()
        self._absence = self._loop.call_later(seconds, self._vanish)

    def _vanish(self) -> None:
        self._vanished.set()
        for number, incoming in self.incoming.items():
            if number != STDIN:
                incoming.fail(self._gone())

    def _gone(self) -> VanishedError:
        if self._kept is not None:
            sentence = "Its files did not come: whoever had to bring them went away."
        elif self._arrived.is_set():
            sentence = "It was ended: whoever ran it went away."
        else:
            sentence = "It was not begun: whoever asked for it did not come to its host."
        return VanishedError(Code.UNREACHABLE, sentence)
