"""Values of properties and commands, as people like to read them."""

from __future__ import annotations

from encamp.cli.cleaning import clean, json_text
from encamp.cli.tables import ago
from encamp.model.property import PropertyDefinition, Reading, Value
from encamp.model.quantity import UNUSUAL, quantity

LONGEST = 400
"""Letters of a value that are shown in a table."""


def value_text(value: Value, unit: str = "") -> str:
    """A value and its unit: `1.5 GiB`, `42 %`, `{"eth0": true}`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return quantity(value, unit)
    return value if isinstance(value, str) else json_text(value)


def shortened(text: str) -> str:
    text = clean(text)
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]} ... ({len(text)} letters; --json shows all)"


def reading_text(definition: PropertyDefinition | None, reading: Reading | None) -> str:
    """A value, or the reason why there is none."""
    if reading is None:
        return "never reported"
    if reading.error:
        return shortened(f"no value: {reading.error}")
    return shortened(value_text(reading.value, definition.unit if definition else ""))


def age(reading: Reading | None, clock_offset: float) -> str:
    """How old it is. It was read by the clock of a host."""
    return ago(reading.at - clock_offset) if reading is not None and reading.at else ""


def number(reading: Reading | None) -> float | None:
    """The reading as a number, if it is one that can be."""
    if reading is None or reading.error or isinstance(reading.value, bool):
        return None
    value = reading.value
    return float(value) if isinstance(value, int | float) and abs(value) < UNUSUAL else None
