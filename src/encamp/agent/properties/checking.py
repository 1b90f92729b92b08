"""Is what a plug-in returned what its definition promises, and small enough to travel?"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import msgspec

from encamp.agent.properties.plugin import NoValueError
from encamp.model.property import DEEPEST, LARGEST_VALUE, Value, ValueKind, fits

LONGEST_TEXT = 40
"""Characters of a value that are quoted."""
SMALLEST, LARGEST = -(1 << 63), (1 << 64) - 1
"""Whole numbers that MessagePack can carry."""


def checked(value: Any, kind: ValueKind) -> Value:
    """The value, as its kind; an error that says what is wrong with it. A list or dictionary is
    copied, since the plug-in may go on with its own."""
    if kind is ValueKind.FLOAT and type(value) is int:
        _check_range(value)
        value = float(value)
    if not fits(value, kind):
        raise NoValueError(f"returned {described(value)}, not {kind.value}")
    _measure(value)
    if kind in (ValueKind.LIST, ValueKind.DICT):
        value = msgspec.msgpack.decode(msgspec.msgpack.encode(value))
    return value  # type: ignore[no-any-return]


def described(value: object) -> str:
    """A value as an error names it. Nothing is made of it that would be as large as itself."""
    if value is None:
        return "nothing (None)"
    name = type(value).__name__
    if type(value) is str:
        return f"{name} {quoted(value)}"
    if type(value) in (bool, float) or (type(value) is int and SMALLEST <= value <= LARGEST):
        return f"{name} {value!r}"
    return name


def quoted(text: str) -> str:
    return repr(text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}...")


def _measure(value: Any) -> None:
    """Look at all of a value, at most as far as it may be large. Nothing is copied on the way."""
    left = LARGEST_VALUE
    around: list[Iterator[Any]] = [iter((value,))]
    while around:
        if len(around) > DEEPEST + 1:
            raise NoValueError(f"returned lists or dictionaries more than {DEEPEST} levels deep")
        for item in around[-1]:
            left -= _size(item)
            if left < 0:
                raise NoValueError(_too_large(value))
            if type(item) is list:
                around.append(iter(item))
                break
            if type(item) is dict:
                _check_names(item)
                around.append(itertools.chain.from_iterable(item.items()))
                break
        else:
            around.pop()


def _size(item: Any) -> int:
    """About the bytes that it takes, encoded, without what it contains."""
    kind = type(item)
    if kind is str:
        return 1 + _text_size(item)
    if kind is int:
        _check_range(item)
        return 1 + int(item.bit_length()) // 8
    if kind is float:
        if not math.isfinite(item):
            raise NoValueError(f"returned {item!r}, which is no number")
        return 9
    if item is None or kind in (bool, list, dict):
        return 1
    raise NoValueError(f"returned a value with {described(item)} in it, which JSON cannot say")


def _text_size(text: str) -> int:
    # What is too large is not even encoded: it has a byte for each character at least.
    if text.isascii() or len(text) > LARGEST_VALUE:
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise NoValueError(f"returned {described(text)}, which is no Unicode text") from error


def _check_range(value: int) -> None:
    if not SMALLEST <= value <= LARGEST:
        raise NoValueError(f"returned a whole number of {value.bit_length()} bits; 64 are possible")


def _check_names(value: dict[Any, Any]) -> None:
    for name in value:
        if type(name) is not str:
            raise NoValueError(f"returned a dictionary with {described(name)} as a name")


def _too_large(value: Any) -> str:
    if type(value) is str:
        size = f"a text of {_text_size(value):,} bytes"
    else:
        size = f"a {type(value).__name__} of more than {LARGEST_VALUE:,} bytes"
    return f"returned {size}; a property has at most {LARGEST_VALUE:,}"
