"""What really happened on a simulated site, whatever its manager believes."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from encamp.model.size import Size


class Span(NamedTuple):
    """A time in which somebody had something of a host."""

    begin: float
    end: float
    size: Size


class NotDone(msgspec.Struct, kw_only=True):
    """Something that a trigger decided, and that has no meaning in a simulation, or failed."""

    trigger: str
    what: str
    """`log`, `mail`, the name of a command."""
    times: int = 0
    first: str
    """What it was the first time, in words."""


class Tally:
    def __init__(self) -> None:
        self.machines_made = 0
        self.template_hits = 0
        """Machines that were cloned from a template that was there already."""
        self.machines_reused = 0
        """How often a command has taken one that was idle."""
        self.machines_ahead = 0
        """Machines that were made ready before anybody wanted them."""
        self.idle: list[Span] = []
        """When machines were idle that are not any more."""
        self.not_done: dict[tuple[str, str], NotDone] = {}
        self.templates_made = 0
        self.booted = 0
        self.images_copied = 0
        self.bytes_copied = 0
        self.claims = 0
        self.refusals = 0
        self.beginnings: dict[str, dict[str, float]] = {}
        """When each command of each request began, by its id."""
        self.endings: dict[str, dict[str, float]] = {}
        """When each ran to its end."""
        self.began_last: list[str] = []
        """Requests of which a command has begun since somebody looked."""

    def began(self, request: str, command: str, now: float) -> None:
        self.beginnings.setdefault(request, {})[command] = now
        self.began_last.append(request)

    def was_not_done(self, trigger: str, what: str, words: str) -> None:
        found = self.not_done.setdefault(
            (trigger, what), NotDone(trigger=trigger, what=what, first=words)
        )
        found.times += 1

    def finished(self, request: str, command: str, now: float) -> None:
        self.endings.setdefault(request, {})[command] = now
