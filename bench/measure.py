"""Taking samples and comparing them: medians and ratios, never single values."""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class ImpossibleError(Exception):
    """Something cannot be measured here; the message is the end of a sentence that says why."""


@dataclass
class Series:
    """What was measured again and again for one side of a comparison."""

    name: str
    unit: str
    values: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        self.values.append(value)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def middle_half(self) -> tuple[float, float]:
        """Between which values half of them lie."""
        if len(self.values) < 2:
            return self.values[0], self.values[0]
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return low, high


def ratio(one: Series, other: Series) -> float:
    """How many times the other this one is, by their medians."""
    return one.median / other.median


def paired_ratio(one: Series, other: Series) -> float:
    """How many times the other this one is, by the median over the rounds: what slows the whole
    host for a while slows both sides of a round."""
    pairs = zip(one.values, other.values, strict=True)
    return statistics.median(mine / its for mine, its in pairs)


def growth_per_step(samples: Sequence[tuple[int, float]]) -> float:
    """How much a value grows with every step: the median of what any two samples say.

    One jump, which is no growth, hardly shows in it."""
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(samples, 2)]
    return statistics.median(slopes)


@contextmanager
def stopwatch(series: Series) -> Iterator[None]:
    """Add what the block takes, in milliseconds."""
    started = time.perf_counter()
    yield
    series.add((time.perf_counter() - started) * 1000)


def rounds(what: str, count: int) -> Iterator[int]:
    """Count the rounds, and show where it is if somebody watches."""
    shown = sys.stderr.isatty()
    for number in range(count):
        if shown:
            print(f"\r\x1b[K{what}: {number + 1} of {count}", end="", file=sys.stderr, flush=True)
        yield number
    if shown:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@dataclass
class Memory:
    """What a process, or several, hold of the host's memory, in bytes."""

    own: int = 0
    """In pages of its own, which nothing on disk stands behind."""
    proportional: int = 0
    """With its part of those it shares with others."""

    def __add__(self, other: Memory) -> Memory:
        return Memory(self.own + other.own, self.proportional + other.proportional)


def memory_of(pid: int | str) -> Memory:
    return parse_rollup(Path(f"/proc/{pid}/smaps_rollup").read_text())


def parse_rollup(text: str) -> Memory:
    values = {}
    for line in text.splitlines()[1:]:
        name, _, rest = line.partition(":")
        values[name] = int(rest.split()[0]) * KIB
    return Memory(own=values["Anonymous"], proportional=values["Pss"])


def resident() -> int:
    """What this process holds in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def available_memory() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * KIB for line in lines if line.startswith("MemAvailable:"))


def settled(read: Callable[[], int], *, within: int, seconds: float = 60.0) -> int:
    """Wait until a value stands still, and return it."""
    deadline = time.monotonic() + seconds
    last = read()
    while time.monotonic() < deadline:
        time.sleep(1.0)
        now = read()
        if abs(now - last) <= within:
            return now
        last = now
    return last
