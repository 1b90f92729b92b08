"""What is wrong with triggers, with its place in a file: all of it is told at once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from encamp.core.expressions import ExpressionError
from encamp.model.errors import Code, EncampError
from encamp.model.trigger import Passage, TriggerDefinition

SHOWN = 200
"""A set that is wrong throughout is not told about without end."""


class Problem(msgspec.Struct, frozen=True, order=True):
    path: str
    line: int
    column: int
    sentence: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.sentence}"


def of_definition(definition: TriggerDefinition, sentence: str) -> Problem:
    return Problem(definition.path, definition.line, definition.column, sentence)


def of_passage(passage: Passage, line: int, column: int, sentence: str) -> Problem:
    """At a line and column of the text, both counted from 1."""
    lines = passage.text.split("\n")
    offset = sum(len(text) + 1 for text in lines[: line - 1]) + column - 1
    return Problem(passage.path, *passage.place(min(offset, len(passage.text))), sentence)


def of_expression(passage: Passage, error: ExpressionError) -> list[Problem]:
    return [
        of_passage(passage, mistake.line, mistake.column, mistake.sentence)
        for mistake in error.mistakes
    ]


def error_of(problems: Sequence[Problem]) -> EncampError:
    found = sorted(set(problems))
    lines = [str(problem) for problem in found[:SHOWN]]
    if len(found) > len(lines):
        lines.append(f"... and {len(found) - len(lines)} more")
    many = f"There are {len(found)} mistakes" if len(found) > 1 else "There is a mistake"
    return EncampError(
        Code.CONFIGURATION,
        f"{many} in the triggers: {found[0]}",
        "None of them was taken over; the triggers that were running before go on.",
        detail="\n".join(lines),
    )
