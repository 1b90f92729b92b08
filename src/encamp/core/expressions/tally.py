"""What is kept of many values so that one more, or one less, costs the same however many there are.

Sums are exact: a float is a whole number times a power of two, so all of them together are one
whole number. Nothing drifts, and the order in which values come and go does not matter.
"""

from __future__ import annotations

import heapq
import math
from typing import Any, Protocol

from encamp.core.expressions.aggregate import LOGICAL, NUMERIC, Measure
from encamp.core.expressions.frame import NotKnown
from encamp.core.expressions.part import words_of

SCALE = 1074
"""Two to the minus this is the smallest float there is; every float is a multiple of it."""

LEFT_OUT = object()
"""What something contributes of which it is not known whether, or with what, it counts."""
RULED_OUT = object()
"""What something contributes that could have been chosen, but is known not to be."""


class Tally(Protocol):
    def add(self, key: str, value: Any) -> None: ...

    def discard(self, key: str, value: Any) -> None:
        """`value` is what was added under this key."""

    def result(self) -> Any:
        """Raises NotKnown if of nothing there is none."""


class Count:
    def __init__(self) -> None:
        self.count = 0

    def add(self, key: str, value: Any) -> None:
        self.count += 1

    def discard(self, key: str, value: Any) -> None:
        self.count -= 1

    def result(self) -> int:
        return self.count


class Sum:
    def __init__(self) -> None:
        self.count = 0
        self.whole = 0
        """The sum of the whole numbers."""
        self.scaled = 0
        """The sum of the floats, in units of the smallest one."""
        self.floats = 0
        self.endless = {math.inf: 0, -math.inf: 0}

    def add(self, key: str, value: Any) -> None:
        self._move(value, 1)

    def discard(self, key: str, value: Any) -> None:
        self._move(value, -1)

    def _move(self, value: Any, by: int) -> None:
        self.count += by
        if type(value) is int:
            self.whole += by * value
            return
        self.floats += by
        if value in self.endless:
            self.endless[value] += by
            return
        numerator, denominator = value.as_integer_ratio()
        self.scaled += by * (numerator << (SCALE + 1 - denominator.bit_length()))

    def result(self) -> int | float:
        return self.divided(1) if self.floats else self.whole

    def divided(self, by: int) -> float:
        """The sum over a number, rounded once."""
        up, down = self.endless[math.inf], self.endless[-math.inf]
        if up or down:
            if up and down:
                raise NotKnown("there are infinities of both signs")
            return math.inf if up else -math.inf
        try:
            return ((self.whole << SCALE) + self.scaled) / (by << SCALE)
        except OverflowError:
            raise NotKnown("the sum is too large a number") from None


class Mean(Sum):
    def result(self) -> float:
        if not self.count:
            raise NotKnown("there is nothing to take the mean of")
        return self.divided(self.count)


class Extreme:
    """A heap, out of which what has gone is taken only when it comes to the top."""

    def __init__(self, sign: int) -> None:
        self.sign = sign
        self.live: dict[str, Any] = {}
        self.heap: list[tuple[Any, str]] = []

    def add(self, key: str, value: Any) -> None:
        self.live[key] = value
        heapq.heappush(self.heap, (self.sign * value, key))

    def discard(self, key: str, value: Any) -> None:
        del self.live[key]
        if len(self.heap) > 2 * len(self.live) + 64:
            # Once in as many changes as there are values: constant cost over time.
            self.heap = [(self.sign * live, name) for name, live in self.live.items()]
            heapq.heapify(self.heap)

    def result(self) -> Any:
        while self.heap:
            value, key = self.heap[0]
            if key in self.live and self.sign * self.live[key] == value:
                return self.live[key]
            heapq.heappop(self.heap)
        raise NotKnown("there is nothing to choose from")


class Smallest(Extreme):
    def __init__(self) -> None:
        super().__init__(1)


class Largest(Extreme):
    def __init__(self) -> None:
        super().__init__(-1)


class Some:
    def __init__(self) -> None:
        self.true = 0
        self.count = 0

    def add(self, key: str, value: Any) -> None:
        self.count += 1
        self.true += value

    def discard(self, key: str, value: Any) -> None:
        self.count -= 1
        self.true -= value

    def result(self) -> bool:
        return self.true > 0


class Every(Some):
    def result(self) -> bool:
        return self.true == self.count


class Members:
    """Their keys, in order."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def add(self, key: str, value: Any) -> None:
        self.values[key] = value

    def discard(self, key: str, value: Any) -> None:
        del self.values[key]

    def result(self) -> Any:
        return tuple(sorted(self.values))


class Values(Members):
    def result(self) -> Any:
        return [self.values[key] for key in sorted(self.values)]


TALLIES: dict[Measure, type[Tally]] = {
    Measure.COUNT: Count,
    Measure.SUM: Sum,
    Measure.MEAN: Mean,
    Measure.MIN: Smallest,
    Measure.MAX: Largest,
    Measure.ANY: Some,
    Measure.ALL: Every,
    Measure.MEMBERS: Members,
    Measure.VALUES: Values,
}


def is_admitted(measure: Measure, value: Any) -> bool:
    """Can it be tallied? Other values are left out, like those that are not known."""
    if measure in NUMERIC:
        return type(value) in (int, float) and value == value
    return measure not in LOGICAL or type(value) is bool


def admit(measure: Measure, value: Any) -> Any:
    if not is_admitted(measure, value):
        what = "no number" if measure in NUMERIC else "not true or false"
        raise NotKnown(f"it is {words_of(value)}, {what}")
    return value
