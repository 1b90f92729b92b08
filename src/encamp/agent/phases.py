"""Timing the phases of a machine's life."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from encamp.model.machine import Machine, Phase, PhaseTime

Told = Callable[[Machine], None]


class How:
    """Filled in by whoever carries out a phase."""

    def __init__(self, word: str) -> None:
        self.word = word


class Phases:
    def __init__(self) -> None:
        self.began = time.monotonic()
        self.times: list[PhaseTime] = []
        self.on_image: Callable[[], None] = lambda: None
        """Called when the image is not here, and is about to be copied or built."""
        self.on_machine: Told = lambda machine: None
        """Called with a machine that is about to be made."""

    @contextmanager
    def time(self, phase: Phase, how: str) -> Iterator[How]:
        started = time.monotonic()
        word = How(how)
        try:
            yield word
        except BaseException:
            word.word = f"{word.word} (failed)"
            raise
        finally:
            now = time.monotonic()
            self.times.append(PhaseTime(phase, word.word, started - self.began, now - started))

    def __iter__(self) -> Iterator[PhaseTime]:
        return iter(self.times)

    def done(self) -> tuple[PhaseTime, ...]:
        return tuple(self.times)
