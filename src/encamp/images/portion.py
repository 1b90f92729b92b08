"""Progress of a build: each step fills its own portion of the whole, and it never goes back."""

from __future__ import annotations

from collections.abc import Callable

from encamp.progress import Progress


class Forward:
    """Passes progress on, never with a smaller fraction than before."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.reached = 0.0
        self.said = ""

    def update(self, what: str, fraction: float | None = None) -> None:
        reached = min(1.0, max(self.reached, fraction or 0.0))
        # A terminal cannot show more than this, and programs report far more often.
        if what == self.said and reached < self.reached + 0.001:
            return
        self.reached, self.said = reached, what
        self.progress.update(what, reached)


class Portion:
    """One step's part of a whole, from `start` to `end`; can be divided further."""

    def __init__(self, progress: Progress, start: float = 0.0, end: float = 1.0) -> None:
        self.progress = progress
        self.start = start
        self.end = end

    def update(self, what: str, fraction: float | None = None) -> None:
        done = min(1.0, max(0.0, fraction or 0.0))
        self.progress.update(what, self.start + (self.end - self.start) * done)

    def part(self, start: float, end: float) -> Portion:
        length = self.end - self.start
        return Portion(self.progress, self.start + length * start, self.start + length * end)

    def reader(self, what: str, read: Callable[[str], float | None]) -> Callable[[str], None]:
        """A reader of a program's lines: `read` turns a line into the fraction it tells, if any."""
        self.update(what)

        def on_line(line: str) -> None:
            fraction = read(line)
            if fraction is not None:
                self.update(what, fraction)

        return on_line
