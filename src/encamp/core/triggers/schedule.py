"""When which trigger must be looked at though nothing changes: one heap for all of them."""

from __future__ import annotations

import enum
import heapq
import itertools
from collections.abc import Iterator
from typing import NamedTuple

from encamp.core.triggers.trigger import Trigger

LEAST = 1000
"""A heap of so few entries is never gone through for those that mean nothing any more."""


class Purpose(enum.Enum):
    SUBJECT = enum.auto()
    """What a standing with a subject waits for."""
    TICK = enum.auto()
    WIDE_LOOK = enum.auto()
    """At all subjects, after something changed that concerns all of them."""


class Appointment(NamedTuple):
    at: float
    number: int
    """Nothing behind it is ever compared."""
    trigger: Trigger
    subject: str | None
    purpose: Purpose

    @property
    def holds(self) -> bool:
        """Has it not become another time since it was made?"""
        if self.purpose is Purpose.TICK:
            return self.trigger.next_tick == self.at
        if self.purpose is Purpose.WIDE_LOOK:
            return self.trigger.next_wide_look == self.at
        standing = self.trigger.standings.get(self.subject)
        return standing is not None and standing.due == self.at


class Schedule:
    def __init__(self) -> None:
        self._heap: list[Appointment] = []
        self._numbers = itertools.count()
        self._clean_at = LEAST

    def add(
        self,
        at: float,
        trigger: Trigger,
        subject: str | None = None,
        purpose: Purpose = Purpose.SUBJECT,
    ) -> None:
        appointment = Appointment(at, next(self._numbers), trigger, subject, purpose)
        heapq.heappush(self._heap, appointment)
        if len(self._heap) > self._clean_at:
            self._heap = [entry for entry in self._heap if entry.holds]
            heapq.heapify(self._heap)
            self._clean_at = max(LEAST, 2 * len(self._heap))

    def pop_due(self, now: float) -> Iterator[Appointment]:
        """Those whose time has come, in order, also if more are made meanwhile."""
        while self._heap and self._heap[0].at <= now:
            appointment = heapq.heappop(self._heap)
            if appointment.holds:
                yield appointment

    def next(self) -> float | None:
        while self._heap and not self._heap[0].holds:
            heapq.heappop(self._heap)
        return self._heap[0].at if self._heap else None

    def clear(self) -> None:
        self._heap.clear()

    def __len__(self) -> int:
        return len(self._heap)
