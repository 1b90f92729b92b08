"""A host: a node with an agent on it, as the manager knows it."""

from __future__ import annotations

import enum

import msgspec

from encamp.model.command import CommandDefinition
from encamp.model.machine import Machine
from encamp.model.property import PropertyDefinition, Reading

NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,253}[A-Za-z0-9])?"


class Presence(enum.Enum):
    JOINED = "joined"
    LEFT = "left"
    """Its agent said goodbye."""
    LOST = "lost"
    """Its agent fell silent, or its connection broke, without a goodbye."""


class Host(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    groups: tuple[str, ...] = ()
    presence: Presence = Presence.JOINED
    reason: str = ""
    since: float = 0.0
    """When it came into this presence."""
    version: str = ""
    instance: str = ""
    """Which run of its agent this is."""
    clock_offset: float = 0.0
    """Seconds that its clock is ahead of the manager's."""
    properties: tuple[PropertyDefinition, ...] = ()
    commands: tuple[CommandDefinition, ...] = ()
    readings: dict[str, Reading] = {}
    machines: tuple[Machine, ...] = ()
