"""Progress of a build: each step fills its own portion of the whole, and it never goes back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from encamp.progress import FIGURES, Progress

AGED = 5.0
"""Seconds after which what is being done is told with its age."""


class Aging:
    """Passes progress on, and tells every second for how long the same has been done: programs are
    silent for minutes, and a log has to show that the build goes on."""

    def __init__(self, progress: Progress, aged: float = AGED, every: float = 1.0) -> None:
        self.progress = progress
        self.aged = aged
        self.every = every
        self.latest: tuple[str, float | None] = ("", None)
        self.began = time.monotonic()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.repeat, daemon=True)

    def __enter__(self) -> Aging:
        self.thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.ended.set()
        self.thread.join()

    def update(self, what: str, fraction: float | None = None) -> None:
        if what != self.latest[0]:
            self.began = time.monotonic()
        self.latest = (what, fraction)
        self.tell()

    def tell(self) -> None:
        what, fraction = self.latest
        age = time.monotonic() - self.began
        said = what if age < self.aged else f"{what}{FIGURES}{age:.0f} s"
        self.progress.update(said, fraction)

    def repeat(self) -> None:
        while not self.ended.wait(self.every):
            if self.latest[0] and time.monotonic() - self.began >= self.aged:
                self.tell()


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
