"""What happened in a simulation, line by line: to be read where something went wrong."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from encamp.sim.clock import Clock


class Log:
    """Keeps the last lines, and tells all of them to whoever listens."""

    def __init__(self, clock: Clock, keep: int = 0, listen: Callable[[str], None] | None = None):
        self._clock = clock
        self._lines: deque[tuple[float, str, str, tuple[Any, ...]]] = deque(maxlen=keep)
        self._listen = listen
        self.silent = keep == 0 and listen is None

    def say(self, who: str, what: str, *about: Any) -> None:
        if self.silent:
            return
        line = (self._clock.now, who, what, about)
        self._lines.append(line)
        if self._listen is not None:
            self._listen(_text(*line))

    def lines(self) -> list[str]:
        return [_text(*line) for line in self._lines]


def _text(at: float, who: str, what: str, about: tuple[Any, ...]) -> str:
    facts = " ".join(str(fact) for fact in about if fact != "")
    return f"{at:12.3f}  {who:<12} {what}{': ' if facts else ''}{facts}"
