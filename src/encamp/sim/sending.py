"""Sending commands to a host: one after the other, each until the host has answered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from encamp.sim.clock import Clock
from encamp.sim.said import Answer, Cancel, Execute
from encamp.sim.written import Issued

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 10.0

Ask = Callable[[str, msgspec.Struct, Callable[[Answer | None], None]], None]


class Outbox:
    """The commands that one host has not answered to yet."""

    def __init__(
        self,
        host: str,
        clock: Clock,
        ask: Ask,
        execute: Callable[[Issued], Execute],
        answered: Callable[[Issued, Answer], None],
    ) -> None:
        self._host = host
        self._clock = clock
        self._ask = ask
        self._execute = execute
        self._answered = answered
        self._waiting: deque[Issued] = deque()
        self._busy = False
        self._pause = FIRST_PAUSE
        self._tries = 0
        self.joined = False
        self.alive = True

    def send(self, issued: Issued) -> None:
        if issued not in self._waiting:
            self._waiting.append(issued)
        self._next()

    def try_again(self) -> None:
        """The host has joined: a pause need not be waited for."""
        self._tries += 1
        self._busy = False
        self._next()

    def _next(self) -> None:
        if self._busy or not self.alive or not self.joined:
            return
        waiting = self._waiting
        while waiting and not _wanted(waiting[0]):
            waiting.popleft()
        if not waiting:
            return
        self._busy = True
        issued = waiting[0]
        tries = self._tries
        if issued.to_stop:
            message: msgspec.Struct = Cancel(issued.id)
        else:
            issued.tried = True
            message = self._execute(issued)
        stopping = issued.to_stop
        self._ask(
            self._host, message, lambda answer: self._settled(issued, stopping, tries, answer)
        )

    def _settled(self, issued: Issued, stopping: bool, tries: int, answer: Answer | None) -> None:
        if not self.alive or tries != self._tries:
            return
        self._busy = False
        if answer is None:
            self._busy = True
            self._clock.after(self._pause, self._paused, tries)
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
            return
        self._pause = FIRST_PAUSE
        if stopping or not issued.to_stop:
            # Else somebody wants it to stop since it was sent.
            self._waiting.remove(issued)
        if not stopping:
            self._answered(issued, answer)
        self._next()

    def _paused(self, tries: int) -> None:
        if tries == self._tries:
            self._busy = False
            self._next()


def _wanted(issued: Issued) -> bool:
    return issued.result is None and (issued.to_stop or not issued.taken)
