"""For which subjects can an expression be true, without working it out for each of them?

When a thousand triggers are loaded on a site of ten thousand hosts, ten million values would have
to be worked out, nearly all of them false. Instead, the hosts are put in the order of a fact once,
and for `host.load1 > 8 and ...` only those with a higher load are looked at.
"""

from __future__ import annotations

import ast
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from encamp.core.triggers.comparisons import Comparison, is_number
from encamp.core.world import Known, Thing

MOST_UNKNOWN = 100
"""Subjects without a value that are looked at all the same, so that the log tells about some."""


class Order:
    """All things of a kind, in the order of one of their facts."""

    def __init__(self, things: Iterable[Thing], fact: str) -> None:
        numbers: list[tuple[float, str]] = []
        self.equal: dict[str, list[str]] = {}
        self.strange: list[str] = []
        """Those whose value is neither a number nor a text."""
        for thing in things:
            value: Known = thing.facts.get(fact)
            if is_number(value):
                numbers.append((value, thing.key))
            elif isinstance(value, str):
                self.equal.setdefault(value, []).append(thing.key)
            else:
                self.strange.append(thing.key)
        numbers.sort(key=lambda pair: pair[0])
        self.values = [value for value, _ in numbers]
        self.keys = [key for _, key in numbers]

    def chosen(self, compared: Comparison) -> list[str] | None:
        """Those for which the comparison holds; None if nearly all of them would be."""
        value, way = compared.value, compared.way
        if isinstance(value, str):
            if way is not ast.Eq:
                return None
            found = self.equal.get(value, [])
        else:
            low, high = bisect_left(self.values, value), bisect_right(self.values, value)
            part = {
                ast.Lt: slice(0, low),
                ast.LtE: slice(0, high),
                ast.Gt: slice(high, None),
                ast.GtE: slice(low, None),
                ast.Eq: slice(low, high),
            }.get(way)
            if part is None:
                return None
            found = self.keys[part]
        return [*found, *self.strange[:MOST_UNKNOWN]]
