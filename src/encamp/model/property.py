"""A property: one fact that an agent reads about its host, on a tick."""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]
else:
    Value = Any
"""What a property or a command's result can be: what JSON can say. msgspec cannot follow the
definition into itself, so what came over the bus is looked at with `is_value`."""

DEEPEST = 32
"""Lists and dictionaries in one another."""

NAME = r"[a-z][a-z0-9_]{0,63}"
"""Names of properties are words of the expression language: `host.memory_free`."""

LARGEST_VALUE = 900_000
"""Bytes of one value, encoded: it has to fit a message. What is larger becomes an error value that
says so."""


class ValueKind(enum.Enum):
    """What type a value is of. The words are Python's, as people write them."""

    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    STR = "str"
    LIST = "list"
    DICT = "dict"


class PropertyDefinition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What to read, how, and how often."""

    name: str
    command: str
    """The plug-in that reads it."""
    parameters: tuple[str, ...] = ()
    """What the plug-in is told."""
    return_type: ValueKind = ValueKind.STR
    ticks: float = 60.0
    """Seconds from one reading to the next; 0: only when asked."""
    timeout: float = 10.0
    """Seconds after which a reading is given up."""
    tolerance: float = 0.0
    """A number that has moved by no more than this has not changed."""
    unit: str = ""
    help: str = ""


class Reading(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of reading a property: a value, or the reason why there is none."""

    value: Value = None
    error: str = ""
    """A sentence, if there is no value."""
    at: float = 0.0
    """When it was read, by the agent's clock."""


def is_value(value: object, depth: int = DEEPEST) -> bool:
    """Is it what JSON can say, and not too deep?"""
    kind = type(value)
    if kind is float:
        return math.isfinite(value)  # type: ignore[arg-type]
    if value is None or kind in (str, bool):
        return True
    if kind is int:
        return -(1 << 63) <= value < 1 << 64  # type: ignore[operator]
    if depth == 0:
        return False
    if isinstance(value, list):
        return all(is_value(item, depth - 1) for item in value)
    if isinstance(value, dict):
        return all(type(key) is str and is_value(item, depth - 1) for key, item in value.items())
    return False


OF_KIND: dict[ValueKind, tuple[type, ...]] = {
    ValueKind.BOOL: (bool,),
    ValueKind.INT: (int,),
    ValueKind.FLOAT: (float, int),
    ValueKind.STR: (str,),
    ValueKind.LIST: (list,),
    ValueKind.DICT: (dict,),
}


def fits(value: Value, kind: ValueKind) -> bool:
    """Is a value of this kind? A bool is no int here."""
    return type(value) in OF_KIND[kind]
