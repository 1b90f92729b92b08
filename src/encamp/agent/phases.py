"""Timing the phases of a machine's life."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from encamp.model.machine import Phase, PhaseTime


class How:
    """Filled in by whoever carries out a phase."""

    def __init__(self, word: str) -> None:
        self.word = word


class Phases:
    def __init__(self) -> None:
        self.began = time.monotonic()
        self.times: list[PhaseTime] = []

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
