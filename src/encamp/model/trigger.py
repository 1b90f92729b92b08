"""A trigger: an expression and commands. When the expression is true, the commands are sent."""

from __future__ import annotations

from bisect import bisect_right

import msgspec

from encamp.model.property import Value

NAME = r"[A-Za-z][A-Za-z0-9_.-]{0,63}"

LEAST_TIME = 0.1
"""Seconds: nothing that a trigger waits for is shorter."""


class Spot(msgspec.Struct, frozen=True, array_like=True):
    """From this character of a text on, the file goes on at this line and column."""

    offset: int
    line: int
    column: int


class Passage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A text that somebody wrote, and where in which file each part of it stands."""

    text: str
    path: str = ""
    spots: tuple[Spot, ...] = (Spot(0, 1, 1),)

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column of a character."""
        index = bisect_right(self.spots, offset, key=lambda spot: spot.offset) - 1
        spot = self.spots[max(0, index)]
        return spot.line, spot.column + max(0, offset - spot.offset)


class TriggerDefinition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    when: Passage
    do: tuple[Passage, ...]
    """Carried out in order."""
    hold: float = 0.0
    """Seconds that the expression must have been true."""
    once: bool | None = None
    """Fires when the expression becomes true, and not again until it was false."""
    every: float = 0.0
    """While it is true, it fires again after so many seconds."""
    cooldown: float = 0.0
    """Seconds after firing in which it is silent, for each subject."""
    ticks: float = 0.0
    """Seconds between two looks at it that need no reason."""
    on_update_check: bool | None = None
    """Is it looked at whenever something changes that it reads?"""
    enabled: bool = True
    ignore_errors: bool = False
    """Are the commands after one that failed carried out all the same?"""
    repeats: int = 20
    """How often in a row it may fire on its own effect before it is stopped; 0: without end."""
    help: str = ""
    path: str = ""
    line: int = 1
    column: int = 1

    def means_the_same_as(self, other: TriggerDefinition) -> bool:
        """Do both say the same, wherever it is written?"""
        return _meaning(self) == _meaning(other)


def _meaning(definition: TriggerDefinition) -> TriggerDefinition:
    return msgspec.structs.replace(
        definition,
        when=Passage(definition.when.text),
        do=tuple(Passage(passage.text) for passage in definition.do),
        help="",
        path="",
        line=1,
        column=1,
    )


class TriggerView(msgspec.Struct, frozen=True, kw_only=True):
    """What can be told about a trigger that is at work."""

    name: str
    expression: str
    commands: tuple[str, ...]
    place: str
    """FILE:LINE"""
    options: dict[str, Value]
    """As they are in effect."""
    about: str = ""
    """`host`, `machine` ...: it is judged for each of them."""
    fired: int = 0
    last_fired: float = 0.0
    stopped: str = ""
    """Why it does not fire any more, if only for some."""
    stopped_for: tuple[str, ...] = ()
    """Subjects, and hosts with all on them, for which it does not; empty: it is for all."""
    true_for: tuple[str, ...] = ()
    """For which it is true now; of a trigger about nothing in particular: its own name."""
