"""Virtual time: what is to happen, in the order in which it happens.

Time passes only from one thing that happens to the next. What happens at the same moment happens
in the order in which it was planned, so that a simulation can be repeated exactly.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

Done = Callable[..., None]


class Clock:
    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.passed = 0
        """Things that have happened."""
        self._planned: list[tuple[float, int, Done, tuple[Any, ...]]] = []
        self._count = 0

    def at(self, when: float, do: Done, *arguments: Any) -> None:
        """Do something at a moment; one that is over is now."""
        self._count += 1
        heapq.heappush(self._planned, (max(when, self.now), self._count, do, arguments))

    def after(self, seconds: float, do: Done, *arguments: Any) -> None:
        self.at(self.now + seconds, do, *arguments)

    def next(self) -> float | None:
        """When something happens next."""
        return self._planned[0][0] if self._planned else None

    def step(self) -> bool:
        """Let the next thing happen; False if there is none."""
        if not self._planned:
            return False
        self.now, _, do, arguments = heapq.heappop(self._planned)
        self.passed += 1
        do(*arguments)
        return True
