"""How big a machine is, and how people write and read sizes."""

from __future__ import annotations

import re

import msgspec

from encamp.model.errors import Code, EncampError

MIB = 1024 * 1024
UNITS = {"": MIB, "K": 1024, "M": MIB, "G": 1024 * MIB, "T": 1024 * 1024 * MIB}


LARGEST = 1 << 60
"""Bytes. No machine and no file has so many, and numbers far above cannot be sent."""


class Size(msgspec.Struct, frozen=True):
    """How big a machine is. `disk` 0 means that what it writes lives in its memory."""

    cpus: int
    memory: int
    disk: int = 0

    def __str__(self) -> str:
        disk = f", {format_bytes(self.disk)} disk" if self.disk else ""
        return f"{self.cpus} cpu, {format_bytes(self.memory)}{disk}"


def parse_bytes(text: str, what: str, *, least: int = 0) -> int:
    """A size as people write it: 512 (MiB), 512M, 2G, 1.5G."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise EncampError(
            Code.USAGE, f"{what} '{text}' is not a size.", "Write for example 512M or 2G."
        )
    exact = float(match[1]) * UNITS[match[2].upper()]
    if exact >= LARGEST:
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        raise EncampError(
            Code.USAGE, f"{what} {shown} is more than there is anywhere.", "Write less."
        )
    value = int(exact)
    if value < least:
        raise EncampError(
            Code.USAGE,
            f"{what} {text} is too small: at least {format_bytes(least)} is needed.",
        )
    return value


def format_bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if value == int(value) else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
