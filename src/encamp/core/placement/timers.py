"""Moments at which something is due though nothing happens."""

from __future__ import annotations

import enum
import heapq
from collections.abc import Iterator


class Due(enum.Enum):
    CLAIM = "claim"
    """A host has not answered: `subject` is the request, `number` its attempt."""
    PATIENCE = "patience"
    """A host was waited for long enough: `subject` is the request."""
    WAITED = "waited"
    """A request was to wait no longer: `subject` is the request."""
    AWAY = "away"
    """A host has been gone for so long that nothing on it counts: `subject` is the host."""
    SPARED = "spared"
    """A host was spared long enough: `subject` is the host."""
    AGAIN = "again"
    """Those who wait may be looked at again."""


class Timers:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Due, str, int]] = []
        self._count = 0

    def add(self, at: float, due: Due, subject: str = "", number: int = 0) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, due, subject, number))

    def next(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def pop(self, now: float) -> Iterator[tuple[Due, str, int]]:
        while self._heap and self._heap[0][0] <= now:
            _, _, due, subject, number = heapq.heappop(self._heap)
            yield due, subject, number
