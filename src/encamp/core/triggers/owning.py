"""Whose business it is what a trigger sees: everybody's, that of the subject's owner, or only the
administrators', since it may be about things of several people."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable

from encamp.core.expressions import Call, Expression
from encamp.core.expressions.aggregate import Aggregate
from encamp.core.expressions.part import AggregateRead, FactRead, Read
from encamp.core.world import World

OPEN = frozenset({"host", "environment"})
"""Kinds of things that nobody owns: what is known of them is for everybody."""

CHOOSES_ITSELF = frozenset({"stop_idle"})
"""Functions that speak of machines which the call does not name."""

OwnerOf = Callable[[str, str], str | None]
"""Whose the thing of a kind and a key is; None: nobody knows."""


class Sight(enum.Enum):
    OPEN = enum.auto()
    """Nothing but what everybody may know."""
    SUBJECT = enum.auto()
    """The rest is about the subject alone."""
    OTHERS = enum.auto()
    """Things that belong to anybody."""


def sight_of(expression: Expression, calls: Iterable[Call]) -> Sight:
    calls = tuple(calls)
    reads: frozenset[Read] = expression.uses.union(*(call.uses for call in calls))
    own = frozenset() if expression.about is None else frozenset({expression.about})
    if any(call.function in CHOOSES_ITSELF for call in calls) or any(
        not _is_within(read, own | OPEN) for read in reads
    ):
        return Sight.OTHERS
    return Sight.OPEN if own <= OPEN else Sight.SUBJECT


def _is_within(read: Read, kinds: frozenset[str]) -> bool:
    if isinstance(read, AggregateRead):
        return _is_open(read.aggregate)
    if isinstance(read, FactRead):
        # What does not start from the subject starts from a thing that is named.
        allowed = kinds if read.variable else OPEN
        return all(step.kind in allowed for step in read.steps)
    return True


def _is_open(aggregate: Aggregate) -> bool:
    return aggregate.selection.kind in OPEN and all(
        _is_within(read, OPEN) for read in aggregate.reads
    )


def owner_in(world: World, kind: str, key: str) -> str | None:
    """Whose a request or a command is, as the world knows it."""
    thing = world.things.get(kind, {}).get(key)
    fact = {"request": "owner", "command": "issuer"}.get(kind)
    owner = thing.fact(fact) if thing is not None and fact is not None else None
    return owner if isinstance(owner, str) else None
