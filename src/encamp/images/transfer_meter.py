"""How far a transfer is, and how fast."""

from __future__ import annotations

import time
from collections import deque

from encamp.model.size import format_bytes
from encamp.progress import FIGURES, Progress

SAID_EVERY = 0.1
"""Seconds between two reports."""
RATE_OVER = 5.0
"""Seconds whose mean is called the rate."""


class Meter:
    """Counts the bytes of a transfer and tells how many there are, and how many in a second."""

    def __init__(self, progress: Progress, what: str, total: int) -> None:
        self.progress = progress
        self.what = what
        self.total = total
        self.done = 0
        self.said = 0.0
        self.marks: deque[tuple[float, int]] = deque()

    def add(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        if now - self.said < SAID_EVERY and self.done < self.total:
            return
        self.said = now
        self.marks.append((now, self.done))
        while now - self.marks[0][0] > RATE_OVER:
            self.marks.popleft()
        seconds, bytes_moved = now - self.marks[0][0], self.done - self.marks[0][1]
        rate = f", {format_bytes(bytes_moved / seconds)}/s" if seconds > 0 else ""
        self.progress.update(
            f"{self.what}{FIGURES}{amount(self.done, self.total)}{rate}",
            self.done / max(1, self.total),
        )

    def take_back(self, count: int) -> None:
        """What was counted has to be transferred again."""
        self.done -= count
        self.marks.clear()

    def say(self, what: str) -> None:
        self.progress.update(what, self.done / max(1, self.total))


def amount(done: int, total: int) -> str:
    return f"{format_bytes(done)} of {format_bytes(total)}"
