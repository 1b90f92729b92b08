"""What can happen to a site: what the manager's daemon tells the core."""

from __future__ import annotations

import msgspec

from encamp.model.command import CommandDefinition, CommandRecord
from encamp.model.host import Presence
from encamp.model.machine import Machine
from encamp.model.property import PropertyDefinition, Reading, Value


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """An agent has introduced itself, and said all it knows."""

    name: str
    instance: str
    version: str
    clock_offset: float
    groups: tuple[str, ...] = ()
    properties: tuple[PropertyDefinition, ...] = ()
    commands: tuple[CommandDefinition, ...] = ()
    readings: dict[str, Reading] = {}
    machines: tuple[Machine, ...] = ()
    troubles: tuple[str, ...] = ()


class Gone(msgspec.Struct, frozen=True):
    """An agent has left, or was lost."""

    name: str
    presence: Presence
    reason: str


class Forgotten(msgspec.Struct, frozen=True):
    """A host is no longer part of the site."""

    name: str


class Reported(msgspec.Struct, frozen=True):
    """An agent tells what has changed."""

    name: str
    readings: dict[str, Reading]
    machines: tuple[Machine, ...] | None = None


class CommandMoved(msgspec.Struct, frozen=True):
    """A command was issued, or has got on."""

    record: CommandRecord


class EnvironmentsRead(msgspec.Struct, frozen=True):
    """The environments that there are, by name, with their facts."""

    environments: dict[str, dict[str, Value]]


class TimePassed(msgspec.Struct, frozen=True):
    """Nothing happened but time."""


Happening = Joined | Gone | Forgotten | Reported | CommandMoved | EnvironmentsRead | TimePassed
