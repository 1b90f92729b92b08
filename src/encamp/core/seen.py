"""What an expression has seen, in the words of people: `host.memory_free is 1.5 GiB`."""

from __future__ import annotations

from collections.abc import Mapping

from encamp.core.schema import Schema
from encamp.model.property import Value
from encamp.model.quantity import quantity

LONGEST = 100
"""Characters of one value."""


def seen_in_words(seen: Mapping[str, Value], schema: Schema, most: int) -> str:
    """At most so many of them."""
    told = list(seen.items())[:most]
    return ", ".join(f"{name} is {_worded(name, value, schema)}" for name, value in told)


def _worded(name: str, value: Value, schema: Schema) -> str:
    if value is None:
        return "not known"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return quantity(value, schema.unit_of(name))
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
