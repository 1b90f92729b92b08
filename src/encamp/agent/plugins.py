"""Plug-ins that are installed, by their entry points. Of two with one name, Encamp's own counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def installed(group: str) -> tuple[dict[str, EntryPoint], list[EntryPoint]]:
    """By name; and those whose names were taken already."""
    from importlib.metadata import entry_points

    found: dict[str, EntryPoint] = {}
    entries = sorted(entry_points(group=group), key=lambda entry: not is_ours(entry))
    for entry in entries:
        found.setdefault(entry.name, entry)
    # A package that is installed twice, as while it is worked on, is no rival of itself.
    return found, [entry for entry in entries if found[entry.name].value != entry.value]


def is_ours(entry: EntryPoint) -> bool:
    return entry.value.startswith("encamp.")
