"""The bus between the manager and the agents: it takes time, and may lose, delay and repeat.

What one daemon sends to another arrives in the order in which it was sent, as on the real one.
Whoever asks is told after a while that nothing was answered; whether the question arrived, nobody
knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from encamp.sim.clock import Clock
from encamp.sim.log import Log
from encamp.sim.troubles import Troubles

Handle = Callable[[Any], Any]
"""Takes a message and returns the answer to it; raises `DeafError` if nobody is there."""
Then = Callable[[Any], None]
"""Takes the answer; None if there was none."""


class DeafError(Exception):
    """Nobody is there to hear it."""


class _Call:
    __slots__ = ("answered", "then")

    def __init__(self, then: Then) -> None:
        self.then = then
        self.answered = False


class Bus:
    def __init__(self, clock: Clock, troubles: Troubles, log: Log, latency: float) -> None:
        self._clock = clock
        self._troubles = troubles
        self._log = log
        self._latency = latency
        self.cut: set[str] = set()
        """Hosts that nothing gets to or from."""
        self._latest: dict[tuple[str, bool], float] = {}
        """When the last message to (True) or from a host arrives, where some were delayed."""

    def ask(
        self,
        host: str,
        to_host: bool,
        handle: Handle,
        message: msgspec.Struct,
        then: Then,
        patience: float,
    ) -> None:
        """Ask the other side; `then` is called once, with the answer or with None."""
        call = _Call(then)
        self._carry(host, to_host, self._arrived, host, to_host, handle, message, call)
        if not self._troubles.none:
            self._clock.after(patience, self._unanswered, call)

    def _arrived(
        self, host: str, to_host: bool, handle: Handle, message: msgspec.Struct, call: _Call
    ) -> None:
        if host in self.cut:
            return
        try:
            answer = handle(message)
        except DeafError:
            return
        self._carry(host, not to_host, self._answered, host, call, answer)

    def _answered(self, host: str, call: _Call, answer: Any) -> None:
        if host in self.cut or call.answered:
            return
        call.answered = True
        call.then(answer)

    def _unanswered(self, call: _Call) -> None:
        if not call.answered:
            call.answered = True
            call.then(None)

    def _carry(self, host: str, to_host: bool, do: Callable[..., None], *arguments: Any) -> None:
        if self._troubles.none:
            self._clock.after(self._latency, do, *arguments)
            return
        if host in self.cut:
            return
        chance, troubles = self._troubles.chance, self._troubles
        if chance.random() < troubles.lost:
            self._log.say("bus", "loses a message", host)
            return
        for _ in range(2 if chance.random() < troubles.twice else 1):
            delay = self._latency
            if troubles.late and chance.random() < 0.5:
                delay += chance.expovariate(1.0 / troubles.late)
            arrives = self._clock.now + delay
            arrives = max(arrives, self._latest.get((host, to_host), 0.0))
            self._latest[host, to_host] = arrives
            self._clock.at(arrives, do, *arguments)
