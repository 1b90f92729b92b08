"""What a participant has taken and not yet handled: bounded, in order per sender.

Messages of one sender are handled one after the other; a slow handler holds up its own sender
only. A few workers go from sender to sender, and another one starts only when all are held up: a
handler that does not wait costs no task of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from encamp.bus import refusals
from encamp.bus.bus import LARGEST_MESSAGE, Handler, Message
from encamp.model.errors import EncampError

MOST_OF_ONE = 32
"""Messages of one sender that wait at most."""
ROOM = 32 * 1024 * 1024
"""Bytes of all senders' messages together."""
IDLE = 4
"""Workers that are kept although there is nothing to do."""
BREATH = 50
"""Messages handled in a row before others in the process get their turn."""

Outcome = bytes | EncampError | None
Done = Callable[[Outcome], None]
"""Told what came of a message."""

log = logging.getLogger(__name__)


class _Line:
    """Messages of one sender, in order."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: deque[tuple[Message, Done | None]] = deque()


class Inbox:
    def __init__(
        self, name: str, handler: Handler, *, most_of_one: int = MOST_OF_ONE, room: int = ROOM
    ) -> None:
        self.name = name
        self._handler = handler
        self._most_of_one = most_of_one
        self._room = room
        self._lines: dict[str, _Line] = {}
        """Of senders with a message that waits or is being handled."""
        self._ready: deque[str] = deque()
        """Senders whose next message nobody handles yet."""
        self._held = 0
        self._wanting: dict[str, tuple[int, Callable[[], None]]] = {}
        """Senders that were turned away, and how to tell them that there is room again."""
        self._workers: set[asyncio.Task[None]] = set()
        self._idle: list[asyncio.Future[None]] = []
        self._coming = False
        """Is a worker on its way to the next message?"""

    def has_room(self, sender: str, size: int) -> bool:
        line = self._lines.get(sender)
        return (line is None or len(line.waiting) < self._most_of_one) and (
            self._held + size <= self._room
        )

    def put(self, message: Message, done: Done | None = None) -> None:
        """Take a message for which there is room."""
        self._held += len(message.body)
        line = self._lines.get(message.sender)
        if line is None:
            line = self._lines[message.sender] = _Line()
            self._ready.append(message.sender)
            if not self._coming:
                self._call_worker()
        line.waiting.append((message, done))

    def when_room(self, sender: str, size: int, tell: Callable[[], None]) -> None:
        """Tell once when there is room for a message; forgets what the sender wanted before."""
        self._wanting.pop(sender, None)
        self._wanting[sender] = size, tell

    def forget(self, sender: str) -> None:
        self._wanting.pop(sender, None)

    async def close(self) -> None:
        """Stop handling. Whoever waits for an answer is told that there will be none."""
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        lines, self._lines = self._lines, {}
        for line in lines.values():
            for _, done in line.waiting:
                if done is not None:
                    done(refusals.gone(self.name))
        for _, tell in list(self._wanting.values()):
            tell()
        self._wanting.clear()

    def _call_worker(self) -> None:
        self._coming = True
        while self._idle:
            idle = self._idle.pop()
            if not idle.done():
                idle.set_result(None)
                return
        worker = asyncio.get_running_loop().create_task(self._work())
        self._workers.add(worker)
        worker.add_done_callback(self._workers.discard)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._coming = False
            handled = 0
            while self._ready:
                sender = self._ready.popleft()
                if self._ready and not self._coming:
                    # In case this one's handler waits for something.
                    self._call_worker()
                await self._handle(sender)
                handled += 1
                if handled % BREATH == 0:
                    await asyncio.sleep(0)
            if len(self._idle) >= IDLE:
                return
            idle = loop.create_future()
            self._idle.append(idle)
            await idle

    async def _handle(self, sender: str) -> None:
        """Handle the next message of a sender."""
        line = self._lines[sender]
        message, done = line.waiting[0]
        outcome: Outcome
        try:
            outcome = await self._handler(message)
            if outcome is not None and len(outcome) > LARGEST_MESSAGE:
                outcome = refusals.answer_too_large(self.name, len(outcome))
        except EncampError as error:
            outcome = error
            if done is None:
                log.warning("a message of '%s' was refused: %s", sender, error)
        except Exception:
            log.exception("a message of '%s' could not be handled", sender)
            outcome = refusals.mistake(self.name)
        line.waiting.popleft()
        self._held -= len(message.body)
        if line.waiting:
            self._ready.append(sender)
        else:
            del self._lines[sender]
        if done is not None:
            done(outcome)
        if self._wanting:
            self._offer_room()

    def _offer_room(self) -> None:
        free = self._room - self._held
        for sender, (size, tell) in list(self._wanting.items()):
            if size > free:
                return
            if self.has_room(sender, size):
                free -= size
                del self._wanting[sender]
                tell()
