"""Where in a file each part of a text stands, however YAML or INI had it written.

Folding, indentation and quotes change a text only in its spaces and by escapes. So the characters
of the text that are no spaces are looked for in the file, one after the other, from where it
begins: that tells where every line of it, and what follows every fold, really is.
"""

from __future__ import annotations

from encamp.describe.nodes import Scalar
from encamp.model.trigger import Passage, Spot

BLOCKS = ("|", ">")
QUOTES = ("'", '"')


def passage_of(node: Scalar, lines: list[str]) -> Passage:
    """A text, and where its parts stand in the lines of its file."""
    line, column = node.line - 1, node.column - 1
    if not node.plain and line < len(lines):
        opening = lines[line][column : column + 1]
        if opening in BLOCKS:
            line, column = line + 1, 0
        elif opening in QUOTES:
            column += 1
    spots = _aligned(node.text, lines, line, column)
    if spots is None:
        # An escape that hides what it stands for: the beginning is told.
        spots = [Spot(0, node.line, node.column)]
    return Passage(node.text, node.source.path, tuple(spots))


def _aligned(text: str, lines: list[str], line: int, column: int) -> list[Spot] | None:
    spots: list[Spot] = []
    for offset, character in enumerate(text):
        if character.isspace():
            continue
        while True:
            if line >= len(lines):
                return None
            if column >= len(lines[line]):
                line, column = line + 1, 0
            elif lines[line][column].isspace():
                column += 1
            else:
                break
        here = lines[line][column]
        if here != character:
            # What is escaped stands behind its escape: \" and ''.
            if lines[line][column + 1 : column + 2] != character:
                return None
            column += 1
        elif here == "'" and lines[line][column : column + 2] == "''" and _doubled(text, offset):
            column += 1
        spot = Spot(offset, line + 1, column + 1)
        if not spots or not _continues(spots[-1], spot):
            spots.append(spot)
        column += 1
    return spots or [Spot(0, line + 1, column + 1)]


def _doubled(text: str, offset: int) -> bool:
    """Does the text have one quote where the file has two?"""
    return text[offset + 1 : offset + 2] != "'"


def _continues(spot: Spot, following: Spot) -> bool:
    """Would the spot before tell the same?"""
    return (
        spot.line == following.line
        and following.column - spot.column == following.offset - spot.offset
    )
