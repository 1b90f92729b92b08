"""Messages on their way to one other participant: one at a time, until it has taken each.

A connection loses messages only when it breaks, so nothing is repeated unasked: whoever waits too
long asks what has become of its message, which is repeated only if it never arrived. That keeps a
busy receiver from drowning in copies.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque

from encamp.bus import refusals, subjects
from encamp.bus.connection import Connection
from encamp.bus.frames import MESSAGE, Kind, Reply

PATIENCE = 1.0
"""Seconds without an answer after which it is asked for; doubles each time."""
LONGEST_PATIENCE = 4.0
ROOM_PATIENCE = 1.0
"""Seconds after which a busy receiver is tried again although it did not say that it has room."""
ABSENCE = 1.0
"""Seconds a participant may be away before it is not there: it may just be reconnecting."""
ABSENCE_BETWEEN = 8.0
"""The same of one who was there a moment ago, and may have been thrown out for not reading fast
enough; and of everybody while others, too, are coming back."""
MOMENT = 5.0
"""Seconds since it last took something."""
ABSENT_PAUSE, LONGEST_ABSENT_PAUSE = 0.1, 1.0
"""Seconds between two tries to reach one who is away; each is longer than the one before."""

Event = tuple[Reply, bytes]


class Call:
    """One message, from its first sending to its settlement."""

    __slots__ = ("_events", "_waiter", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self._events: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def tell(self, reply: Reply, body: bytes = b"") -> None:
        self._events.append((reply, body))
        self._wake()

    def put_back(self, event: Event) -> None:
        self._events.appendleft(event)

    async def next(self, seconds: float) -> Event | None:
        """The next thing that is known about the message; None if that takes too long."""
        if not self._events:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(seconds, self._wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        return self._events.popleft() if self._events else None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Outgoing:
    """What one participant says to one other."""

    def __init__(self, connection: Connection, me: str, other: str, instance: int) -> None:
        self.other = other
        self._connection = connection
        self._instance = instance
        self._subject = subjects.to(other, me)
        self._reply = f"{subjects.answer(me, other)}.{instance:x}."
        self._turn = asyncio.Lock()
        self._last = 0
        self.heard = -math.inf
        """When the other last took something."""
        self._calls: dict[int, Call] = {}
        """Those that are not settled, the oldest first."""

    @property
    def is_idle(self) -> bool:
        return not self._calls and not self._turn.locked()

    def tell(self, number: int, reply: Reply, body: bytes) -> None:
        call = self._calls.get(number)
        if call is not None:
            call.tell(reply, body)

    def reconnected(self) -> None:
        """A connection was broken, ours or the other's: ask at once what got through."""
        for call in self._calls.values():
            call.tell(Reply.RECONNECTED)

    async def deliver(self, kind: Kind, body: bytes, timeout: float) -> bytes:
        call: Call | None = None
        taken = False
        try:
            async with asyncio.timeout(timeout):
                async with self._turn:
                    call = self._begin()
                    await self._until_taken(call, kind, body)
                taken = True
                self.heard = asyncio.get_running_loop().time()
                if kind is Kind.SEND:
                    return b""
                return await self._until_answered(call)
        except TimeoutError:
            late = refusals.not_answered if taken else refusals.not_taken
            raise late(self.other, timeout) from None
        finally:
            if call is not None:
                del self._calls[call.number]

    async def probe(self, seconds: float, kind: Kind = Kind.PROBE) -> Reply | None:
        """HERE; ABSENT if the server knows that there is nobody; None if nothing was heard."""
        call = self._begin()
        try:
            await self._connection.wait_up()
            self._publish(kind, call.number)
            event = await call.next(seconds)
            return event[0] if event is not None else None
        finally:
            del self._calls[call.number]

    def _begin(self) -> Call:
        self._last += 1
        call = self._calls[self._last] = Call(self._last)
        return call

    def _publish(self, kind: Kind, number: int, body: bytes = b"") -> None:
        floor = next(iter(self._calls))
        head = MESSAGE.pack(kind, self._instance, number, floor)
        self._connection.publish(self._subject, head + body, f"{self._reply}{number:x}")

    async def _until_taken(self, call: Call, kind: Kind, body: bytes) -> None:
        absence = _Absence(self._connection)
        now = asyncio.get_running_loop().time()
        absence.is_in_between = now - self.heard < MOMENT
        patience = PATIENCE
        send_it = True
        while True:
            await self._connection.wait_up()
            if send_it:
                self._publish(kind, call.number, body)
            else:
                self._publish(Kind.ASK, call.number)
            event = await call.next(patience)
            if event is None or event[0] is not Reply.ABSENT:
                absence.is_in_between = True
            if event is None:
                patience = min(2 * patience, LONGEST_PATIENCE)
                send_it = False
                continue
            match event[0]:
                case Reply.TAKEN:
                    return
                case Reply.RESULT | Reply.REFUSED:
                    call.put_back(event)
                    return
                case Reply.BUSY:
                    await call.next(ROOM_PATIENCE)
                    send_it = True
                case Reply.ABSENT:
                    if absence.is_long():
                        raise refusals.not_there(self.other)
                    await absence.pause()
                    send_it = True
                case Reply.RECONNECTED:
                    send_it = False
                case _:
                    send_it = True

    async def _until_answered(self, call: Call) -> bytes:
        absence = _Absence(self._connection)
        patience = PATIENCE
        while True:
            event = await call.next(patience)
            reply, body = event if event is not None else (None, b"")
            match reply:
                case Reply.RESULT:
                    return body
                case Reply.REFUSED:
                    raise refusals.unpack(body, self.other)
                case Reply.UNKNOWN:
                    # It was taken, and is not known any more: another run of the other.
                    raise refusals.gone(self.other)
                case Reply.ABSENT:
                    if absence.is_long():
                        raise refusals.gone(self.other)
                    await absence.pause()
                case None:
                    patience = min(2 * patience, LONGEST_PATIENCE)
                case Reply.RECONNECTED:
                    patience = PATIENCE
                case _:
                    continue
            await self._connection.wait_up()
            self._publish(Kind.ASK, call.number)


class _Absence:
    """How long somebody has not been there."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._since: float | None = None
        self._pause = ABSENT_PAUSE
        self.is_in_between = False
        """Was it there a moment ago?"""

    def is_long(self) -> bool:
        now = asyncio.get_running_loop().time()
        if self._since is None:
            self._since = now
        is_expected = self.is_in_between or self._connection.came_back_lately()
        return now - self._since >= (ABSENCE_BETWEEN if is_expected else ABSENCE)

    async def pause(self) -> None:
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, LONGEST_ABSENT_PAUSE)
