"""From what a program printed to a value of the type that was promised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from encamp.agent.properties.checking import quoted
from encamp.agent.properties.plugin import NoValueError
from encamp.model.patterns import Pattern
from encamp.model.property import Value, ValueKind

TRUTHS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


def _truth(text: str) -> bool:
    return TRUTHS[text.lower()]


PARSERS: dict[ValueKind, Callable[[str], Any]] = {
    ValueKind.BOOL: _truth,
    ValueKind.INT: int,
    ValueKind.FLOAT: float,
    ValueKind.STR: str,
    ValueKind.LIST: msgspec.json.decode,
    ValueKind.DICT: msgspec.json.decode,
}


def parse(output: bytes, kind: ValueKind, pattern: Pattern | None = None) -> Value:
    """All of the output, or what the pattern finds in it, as a value."""
    text = output.decode(errors="replace").strip()
    if pattern is not None:
        found = pattern.find(text)
        if found is None:
            raise NoValueError(f"printed {quoted(text)}, in which --match finds nothing")
        text = found
    try:
        value: Value = PARSERS[kind](text)
    except (ValueError, KeyError, RecursionError, msgspec.MsgspecError) as error:
        wanted = "JSON" if kind in (ValueKind.LIST, ValueKind.DICT) else kind.value
        raise NoValueError(f"printed {quoted(text)}, which is no {wanted}") from error
    return value
