"""What is wrong with an expression, where, and what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Collection

import msgspec

from encamp.model.errors import Code, EncampError

FEW = 12
"""So many names are listed when none of them is near."""

MOST = 50
"""Mistakes that are told of one text."""


class Mistake(msgspec.Struct, frozen=True, order=True):
    """Lines and columns count from 1, in characters of the text."""

    line: int
    column: int
    sentence: str

    def __str__(self) -> str:
        return f"{self.line}:{self.column}: {self.sentence}"


class ExpressionError(EncampError):
    """A text that is no expression, or not one that makes sense here. Tells of all mistakes."""

    def __init__(self, text: str, mistakes: Collection[Mistake]) -> None:
        self.text = text
        self.mistakes = sorted(set(mistakes))[:MOST]
        count = len(self.mistakes)
        super().__init__(
            Code.CONFIGURATION,
            self.mistakes[0].sentence
            if count == 1
            else f"There are {count} mistakes in the expression.",
            "It is written as in Python, such as 'host.load1 > 2 * host.cpus'; 'encamp properties"
            " HOST' lists what is known of a host.",
            detail="\n".join(str(mistake) for mistake in self.mistakes),
        )

    def __reduce__(self) -> tuple[object, ...]:
        return ExpressionError, (self.text, self.mistakes)


def near(name: str, known: Collection[str]) -> str:
    """How a sentence about an unknown name ends: with the nearest, or with all if they are few."""
    if known and len(name) <= 100:
        found = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        if found:
            return f"; did you mean '{found[0]}'?"
        if len(known) <= FEW:
            return f"; there are: {', '.join(sorted(known))}."
    return "."
