"""Text that somebody else chose, made fit to be shown on a terminal."""

from __future__ import annotations

MOST = 500
"""Characters."""


def printable(text: str) -> str:
    """The text with what a terminal would obey, or hide, spelled out."""
    shown = text if len(text) <= MOST else f"{text[:MOST]}..."
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in shown
    )
