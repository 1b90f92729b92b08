"""Ranks: what hosts are sorted by. A few are shipped, by name; any numeric expression about a host
is one too, and so is a condition. The higher, the better; a host of which a rank is not known comes
after all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from encamp.core.expressions import Evaluator, Expression
from encamp.core.expressions.frame import Frame
from encamp.core.expressions.part import FactRead, LocalRead, TimeRead
from encamp.core.placement.room import ROOM_FACTS, HostRoom
from encamp.core.world import Known, Thing, Unknown
from encamp.model.property import Value

LAST = math.inf
"""Sorts after everything that is known: ranks are turned round, since the smallest comes first."""

EMULATED = 0.1
"""How fast a host without working hardware virtualization is, beside one that has it."""


class Wanted(NamedTuple):
    """What a rank may ask of the machine that is to be placed."""

    environment: str
    """Empty: what stands ready of it is of no use, since another image is wanted."""
    image: str
    """The name of that, or of the environment's image, if it is known."""


Facts = Mapping[str, Known]


class Named(NamedTuple):
    help: str
    value: Callable[[HostRoom, Facts, Wanted], float | Unknown]
    reads: frozenset[str] = frozenset()
    """Facts of the host whose change changes it, beside its room."""


def _filled(room: HostRoom) -> float:
    """How full a host is, from 0 to 1: the mean of its processors and its memory."""
    cpus = room.used_cpus / room.cpus if room.cpus else 1.0
    memory = room.used_memory / room.memory if room.memory else 1.0
    return (cpus + memory) / 2


def _pack(room: HostRoom, facts: Facts, wanted: Wanted) -> float:
    return _filled(room)


def _spread(room: HostRoom, facts: Facts, wanted: Wanted) -> float:
    return -_filled(room)


def _ready(room: HostRoom, facts: Facts, wanted: Wanted) -> float:
    if room.idle and any(one.environment == wanted.environment for one in room.idle):
        return 3.0
    if wanted.environment in room.proven or _has(facts.get("templates"), wanted.environment):
        return 2.0
    return 1.0 if has_image(facts, wanted) else 0.0


def has_image(facts: Facts, wanted: Wanted) -> bool:
    return _has(facts.get("images"), wanted.image)


def _has(names: Value | Unknown, name: str) -> bool:
    """Is one of them this, or a version of it?"""
    if not name or not isinstance(names, (list, tuple)):
        return False
    return any(
        type(found) is str and (found == name or found.startswith(f"{name}:")) for found in names
    )


def _fastest(room: HostRoom, facts: Facts, wanted: Wanted) -> float | Unknown:
    cpus, load = facts.get("cpus"), facts.get("load1")
    if type(cpus) not in (int, float) or not cpus or type(load) not in (int, float):
        return Unknown("the host does not tell its processors and its load")
    speed = facts.get("cpu_speed")
    idle = max(1.0 - load / cpus, 0.0)  # type: ignore[operator]
    value = (0.05 + idle) * (speed if type(speed) in (int, float) else 1.0)  # type: ignore[operator]
    return value if facts.get("kvm") == "works" else value * EMULATED


NAMED = {
    "pack": Named("the fuller a host is, so that others stay free for large machines", _pack),
    "spread": Named("the emptier a host is", _spread),
    "ready": Named(
        "a machine of the environment stands idle there, or its template is there, or its image",
        _ready,
        frozenset({"images", "templates"}),
    ),
    "fastest": Named(
        "hardware virtualization works, its processors are fast, and they are idle",
        _fastest,
        frozenset({"cpus", "load1", "cpu_speed", "kvm"}),
    ),
}
"""The ranks that are shipped."""

Rank = Named | Expression


def is_steady(rank: Rank) -> bool:
    """Does it read only what hosts tell of themselves? Then it is the same until they tell."""
    if isinstance(rank, Named) or rank.timed:
        return False
    return all(
        isinstance(read, FactRead)
        and all(step.kind == "host" and step.fact not in ROOM_FACTS for step in read.steps)
        for read in rank.uses
    )


def facts_of_host(expression: Expression) -> frozenset[str] | None:
    """What it reads of a host, if that is all it reads beside the time; None: there is more."""
    facts = set()
    for read in expression.uses:
        if isinstance(read, TimeRead | LocalRead):
            continue
        if not isinstance(read, FactRead) or not read.variable or len(read.steps) != 1:
            return None
        facts.add(read.steps[0].fact)
    return frozenset(facts)


def value_of(
    rank: Rank, room: HostRoom, thing: Thing, wanted: Wanted, frame: Frame
) -> float | Unknown:
    if isinstance(rank, Named):
        return rank.value(room, thing.facts, wanted)
    found = Evaluator.value_for(rank, thing, frame)
    if type(found) is float:
        return found if found == found else Unknown("it is no number")
    if isinstance(found, int):
        return int(found)
    return found if isinstance(found, Unknown) else Unknown("it is no number")
