"""Values of properties and commands, as people like to read them."""

from __future__ import annotations

from collections.abc import Callable

from encamp.cli.cleaning import clean, json_text
from encamp.cli.tables import ago, format_bytes
from encamp.model.property import PropertyDefinition, Reading, Value

UNUSUAL = 1e18
"""Numbers from here on are nothing that anybody has so much of."""
LONGEST = 400
"""Letters of a value that are shown in a table."""


def _bytes(value: float) -> str:
    return format_bytes(value)


def duration(value: float) -> str:
    """Such as `2d 3h` or `12s`."""
    parts = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        whole, value = divmod(value, size)
        if whole:
            parts.append(f"{whole:.0f}{unit}")
    return " ".join(parts[:2]) or f"{value:.3g}s"


IN_UNITS: dict[str, Callable[[float], str]] = {
    "bytes": _bytes,
    "bytes/s": lambda value: f"{_bytes(value)}/s",
    "fraction": lambda value: f"{value * 100:.0f} %",
    "seconds": duration,
}
"""How numbers of these units are written; others are followed by their unit."""


def value_text(value: Value, unit: str = "") -> str:
    """A value and its unit: `1.5 GiB`, `42 %`, `{"eth0": true}`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        usual = unit in IN_UNITS and abs(value) < UNUSUAL
        return IN_UNITS[unit](value) if usual else f"{text} {unit}".rstrip()
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
