"""Keeping the traffic even: what the manager sends is let through at a given pace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Pace:
    """At most so many messages a second, each at its own moment and not in bursts."""

    def __init__(self, limit: float | None, clock: Callable[[], float] | None = None) -> None:
        self._gap = 1.0 / limit if limit else 0.0
        self._clock = clock
        self._free = 0.0
        """When the next message may go."""

    @property
    def limited(self) -> bool:
        return self._gap > 0

    def reserve(self, now: float) -> float:
        """The moment at which one more message may go; it is taken by that."""
        moment = max(now, self._free)
        self._free = moment + self._gap
        return moment

    async def turn(self) -> None:
        """Wait for one's turn; turns come in the order in which they were waited for."""
        if not self._gap:
            return
        now = self._clock() if self._clock is not None else asyncio.get_running_loop().time()
        wait = self.reserve(now) - now
        if wait > 0:
            await asyncio.sleep(wait)
