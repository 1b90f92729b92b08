"""Values on their way out, into texts, logs and messages: how much there is to them, and what of
them can be carried."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from encamp.core.expressions.language import LONGEST_STRING
from encamp.model.property import Value

LONGEST_SEEN = 200
"""Characters of a value that is told as seen."""

SMALLEST_CARRIED, LARGEST_CARRIED = -(1 << 63), (1 << 64) - 1
"""Whole numbers that messages can carry."""

LONGEST_CARRIED = 1_000_000
"""Characters of a value that a message can carry; no message takes more."""


def parts_within(value: Any, characters: int) -> int:
    """Of how many values does this one consist? 0 if it cannot be written with so few characters.
    Lists can hold the same list a thousand times over: what has no end is not written to find out
    how long it is, and no more of it is looked at than could be written."""
    waiting, parts = [value], 0
    while waiting:
        one = waiting.pop()
        parts += 1
        kind = type(one)
        if kind is list or kind is tuple or kind is dict:
            # Each element has a character at least, and a comma or bracket.
            if characters < 2 * len(one):
                return 0
            waiting.extend(one.values() if kind is dict else one)
            characters -= len(one) + 1
            if kind is dict:
                characters -= sum(map(len, one))
        else:
            characters -= len(one) if kind is str else 1
        if characters < 0:
            return 0
    return parts


def portable(value: Any) -> Any:
    """The value as it can leave: messages have no room for whole numbers of more than 64 bits, so
    those are rounded. A value that is too large for any message stays as it is."""
    kind = type(value)
    if kind is int and not SMALLEST_CARRIED <= value <= LARGEST_CARRIED:
        return _rounded(value)
    if kind is list or kind is dict:
        if parts_within(value, LONGEST_CARRIED) == 0:
            return value
        try:
            return _rebuilt(value)
        except RecursionError:
            return value
    return value


def _rounded(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _rebuilt(value: Any) -> Any:
    """The same, with each number in it portable."""
    kind = type(value)
    if kind is int:
        return portable(value)
    if kind is list or kind is tuple:
        return [_rebuilt(one) for one in value]
    if kind is dict:
        return {key: _rebuilt(one) for key, one in value.items()}
    return value


def shortened(value: Any) -> Value:
    """Nobody reads a list of ten thousand in a log."""
    if type(value) is float or type(value) is bool:
        return value
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, (list, dict)):
        if len(value) > LONGEST_SEEN or not parts_within(value, LONGEST_STRING):
            return f"{len(value)} elements"
        value = portable(value)
        try:
            text = msgspec.json.encode(value).decode()
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
            return f"{len(value)} elements"
        return value if len(text) <= LONGEST_SEEN else f"{text[:LONGEST_SEEN]}..."
    if isinstance(value, str) and len(value) > LONGEST_SEEN:
        return f"{value[:LONGEST_SEEN]}..."
    return portable(value)  # type: ignore[no-any-return]
