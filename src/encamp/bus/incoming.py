"""Messages of one other participant as they arrive over NATS: each is taken once, in order."""

from __future__ import annotations

import asyncio

from encamp.bus import refusals, subjects
from encamp.bus.bus import LARGEST_MESSAGE, Message
from encamp.bus.connection import Connection
from encamp.bus.frames import ANSWER, MESSAGE, UNRANKED, Kind, Reply, outranks
from encamp.bus.inbox import Inbox, Outcome
from encamp.model.errors import EncampError

MOST_ANSWERS = 64
"""Answers that are kept for one asker in case they have to be repeated."""


class Incoming:
    def __init__(
        self, connection: Connection, inbox: Inbox, me: str, other: str, instance: int
    ) -> None:
        self.other = other
        self._connection = connection
        self._inbox = inbox
        self._subject = subjects.answer(other, me)
        self._instance = instance
        self._run = 0
        """Which run of the other it is."""
        self._last = 0
        """The number of its last message that was taken."""
        self._answers: dict[int, bytes | None] = {}
        """To requests that the other may still wait for; None: not yet known."""

    def take(self, data: bytes) -> None:
        if len(data) < MESSAGE.size:
            return
        kind, run, number, floor = MESSAGE.unpack_from(data)
        if kind == Kind.PROBE:
            self._say(Reply.HERE, run, number)
            return
        if run != self._run:
            if outranks(self._run, run):
                self._refuse(run, number)
                return
            self._run = run
            self._last = 0
            self._answers.clear()
        if number <= self._last:
            self._repeat(number)
        elif kind == Kind.ASK:
            self._say(Reply.UNKNOWN, run, number)
        elif kind == Kind.SEND or kind == Kind.REQUEST:
            self._take_new(kind, run, number, floor, data)

    def _take_new(self, kind: int, run: int, number: int, floor: int, data: bytes) -> None:
        size = len(data) - MESSAGE.size
        if size > LARGEST_MESSAGE:
            return
        if not self._inbox.has_room(self.other, size):
            self._inbox.when_room(self.other, size, lambda: self._say(Reply.ROOM, run, number))
            self._say(Reply.BUSY, run, number)
            return
        self._last = number
        rank = run if run < UNRANKED else 0
        message = Message(self.other, data[MESSAGE.size :], rank=rank)
        if kind == Kind.SEND:
            self._inbox.put(message)
            self._say(Reply.TAKEN, run, number)
            return
        for settled in [each for each in self._answers if each < floor]:
            del self._answers[settled]
        while len(self._answers) >= MOST_ANSWERS:
            del self._answers[next(iter(self._answers))]
        self._answers[number] = None
        self._inbox.put(message, lambda outcome: self._answer(run, number, outcome))
        # Most handlers do not wait; then their answer says that the message was taken, too.
        asyncio.get_running_loop().call_soon(self._say_taken, run, number)

    def _say_taken(self, run: int, number: int) -> None:
        if run == self._run and self._answers.get(number, b"") is None:
            self._say(Reply.TAKEN, run, number)

    def _answer(self, run: int, number: int, outcome: Outcome) -> None:
        if isinstance(outcome, EncampError):
            head, body = Reply.REFUSED, refusals.pack(outcome)
        else:
            head, body = Reply.RESULT, outcome or b""
        data = ANSWER.pack(head, run, number, self._instance) + body
        if run == self._run and number in self._answers:
            self._answers[number] = data
        self._connection.publish(self._subject, data)

    def _refuse(self, run: int, number: int) -> None:
        """One whose name is another's by now."""
        refusal = refusals.pack(refusals.outranked(self.other))
        head = ANSWER.pack(Reply.REFUSED, run, number, self._instance)
        self._connection.publish(self._subject, head + refusal)

    def _repeat(self, number: int) -> None:
        answer = self._answers.get(number)
        if answer is None:
            self._say(Reply.TAKEN, self._run, number)
        else:
            self._connection.publish(self._subject, answer)

    def _say(self, reply: Reply, run: int, number: int) -> None:
        self._connection.publish(self._subject, ANSWER.pack(reply, run, number, self._instance))
