"""Numbers that count something, as people like to read them."""

from __future__ import annotations

from collections.abc import Callable

from encamp.model.size import format_bytes

BYTES = "bytes"

UNUSUAL = 1e18
"""Numbers from here on are nothing that anybody has so much of."""


def duration(value: float) -> str:
    """Such as `2d 3h` or `12s`."""
    if value < 0:
        return f"-{duration(-value)}"
    parts = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        whole, value = divmod(value, size)
        if whole:
            parts.append(f"{whole:.0f}{unit}")
    return " ".join(parts[:2]) or f"{value:.3g}s"


IN_UNITS: dict[str, Callable[[float], str]] = {
    BYTES: format_bytes,
    "bytes/s": lambda value: f"{format_bytes(value)}/s",
    "fraction": lambda value: f"{value * 100:.0f} %",
    "seconds": duration,
}
"""How numbers of these units are written; others are followed by their unit."""


def quantity(value: float, unit: str = "") -> str:
    """A number and its unit: `1.5 GiB`, `42 %`, `2400 MHz`."""
    if unit in IN_UNITS and abs(value) < UNUSUAL:
        return IN_UNITS[unit](value)
    text = str(value) if isinstance(value, int) else f"{value:.6g}"
    return f"{text} {unit}".rstrip()
