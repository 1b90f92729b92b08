"""What fits into a message. Of what is too much for one, the less important is left out, and that
it was is told: a host that cannot tell everything is better than one that is never heard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

from encamp.bus.bus import LARGEST_MESSAGE
from encamp.bus.messages import Hello, encode
from encamp.model.batch_record import BatchRecord
from encamp.model.command import CommandDefinition
from encamp.model.machine import ALIVE, Machine
from encamp.model.property import PropertyDefinition, Reading

SLACK = 20_000
"""Bytes of a message that are left for what is around the things in it."""
ROOM = LARGEST_MESSAGE - SLACK
"""Bytes of readings in one message."""

PROPERTIES = 200_000
COMMANDS = 100_000
MACHINES = 600_000
"""Bytes that each of these may have of a message; the ids of commands under way have theirs."""

LARGE_MACHINE = 4000
"""Bytes of a machine's record. One that has more tells less: mostly what it was made to run."""
LONGEST_REASON = 1000
MOST_TROUBLES = 10
LONGEST_TROUBLE = 1000
"""Letters."""
TROUBLES = MOST_TROUBLES * LONGEST_TROUBLE * 4
"""Bytes, at most."""

T = TypeVar("T")


def fitted(hello: Hello) -> Hello:
    """The same with as much of everything as fits, and what does not as a trouble."""
    properties, commands = _definitions(hello.properties, hello.commands)
    made = msgspec.structs.replace(
        hello, properties=properties, commands=commands, machines=(), troubles=()
    )
    room = ROOM - TROUBLES - len(encode(made))
    machines = fitting_machines(hello.machines, min(MACHINES, room))
    left_out = {
        "properties": len(hello.properties) - len(properties),
        "commands": len(hello.commands) - len(commands),
        "machines": len(hello.machines) - len(machines),
    }
    troubles = [
        f"{count} {what} of this host are not told: there are too many, or they are too large."
        for what, count in left_out.items()
        if count
    ]
    shortened = (trouble[:LONGEST_TROUBLE] for trouble in (*troubles, *hello.troubles))
    return msgspec.structs.replace(
        made, machines=machines, troubles=tuple(shortened)[:MOST_TROUBLES]
    )


def fitting_machines(machines: Sequence[Machine], room: int = MACHINES) -> tuple[Machine, ...]:
    """Those that live first, then those of which there is something new; one of each owner after
    the other, so that those of one leave out nobody else's."""
    shortened = [_shortened(machine) for machine in machines]
    if _size(shortened) <= room:
        return tuple(shortened)
    shortened.sort(key=lambda machine: (machine.state in ALIVE, machine.changed), reverse=True)
    before: Counter[int] = Counter()
    ranked = []
    for machine in shortened:
        ranked.append((machine.state not in ALIVE, before[machine.owner], machine))
        before[machine.owner] += 1
    ranked.sort(key=lambda one: one[:2])
    return _first([machine for *_, machine in ranked], room)


def fitting_jobs(jobs: Sequence[BatchRecord]) -> tuple[BatchRecord, ...]:
    """As many as fit a message, from the first on."""
    return _first(jobs, ROOM)


def portions(readings: dict[str, Reading], first: int = ROOM) -> list[dict[str, Reading]]:
    """In parts that fit a message each; in the first there are only so many bytes left."""
    parts: list[dict[str, Reading]] = [{}]
    room = first
    for name, reading in readings.items():
        length = len(encode(reading)) + len(name) * 4 + 16
        # Nothing larger than fits a message of its own is ever read.
        if length > room and (parts[-1] or len(parts) == 1):
            parts.append({})
            room = ROOM
        parts[-1][name] = reading
        room -= length
    return parts


def _definitions(
    properties: tuple[PropertyDefinition, ...], commands: tuple[CommandDefinition, ...]
) -> tuple[tuple[PropertyDefinition, ...], tuple[CommandDefinition, ...]]:
    if _size(properties) > PROPERTIES:
        properties = tuple(msgspec.structs.replace(one, help="") for one in properties)
    if _size(commands) > COMMANDS:
        commands = tuple(msgspec.structs.replace(one, help="") for one in commands)
    return _first(properties, PROPERTIES), _first(commands, COMMANDS)


def _shortened(machine: Machine) -> Machine:
    if len(encode(machine)) <= LARGE_MACHINE:
        return machine
    return msgspec.structs.replace(
        machine,
        reason=machine.reason[:LONGEST_REASON],
        **dict.fromkeys(("shares", "command", "words", "handed", "devices"), ()),
        variables={},
    )


def _size(things: Iterable[msgspec.Struct]) -> int:
    return sum(len(encode(thing)) for thing in things)


def _first(things: Sequence[T], room: int) -> tuple[T, ...]:
    """As many as fit, from the first on."""
    for number, thing in enumerate(things):
        room -= len(encode(thing))
        if room < 0:
            return tuple(things[:number])
    return tuple(things)
