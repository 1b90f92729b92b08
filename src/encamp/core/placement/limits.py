"""The limits of a policy: what counts against each, and who has reached one."""

from __future__ import annotations

from fnmatch import fnmatchcase

from encamp.core.placement.counted import Counted
from encamp.model.policy import Limit, Per
from encamp.model.size import Size, format_bytes

MOST_REMEMBERED = 10_000
"""Kinds of machines of which it is remembered what they count against."""


class Tally:
    """What counts against one limit: of one owner, or of all."""

    __slots__ = ("cpus", "limit", "machines", "memory", "whose")

    def __init__(self, limit: Limit, whose: str) -> None:
        self.limit = limit
        self.whose = whose
        self.machines = 0
        self.cpus = 0
        self.memory = 0

    def has_room(self, size: Size, count: int) -> bool:
        limit = self.limit
        return (
            (limit.machines is None or self.machines + count <= limit.machines)
            and (limit.cpus is None or self.cpus + count * size.cpus <= limit.cpus)
            and (limit.memory is None or self.memory + count * size.memory <= limit.memory)
        )

    def could_have_room(self, size: Size, count: int) -> bool:
        """If nothing else counted."""
        return Tally(self.limit, self.whose).has_room(size, count)

    def sentence(self, size: Size, count: int) -> str:
        """What is reached, and how far."""
        limit = self.limit
        if limit.machines is not None and self.machines + count > limit.machines:
            reached = f"{self.machines} of {limit.machines} machines"
        elif limit.cpus is not None and self.cpus + count * size.cpus > limit.cpus:
            reached = f"{self.cpus} of {limit.cpus} processors"
        else:
            most = format_bytes(limit.memory or 0)
            reached = f"{format_bytes(self.memory)} of {most} memory"
        whose = f" by {self.whose}" if self.whose else ""
        return f"limit '{limit.name}' is reached: {reached} are taken{whose}"


class Limits:
    def __init__(self, limits: tuple[Limit, ...] = ()) -> None:
        self._limits = limits
        self._tallies: dict[tuple[str, str], Tally] = {}
        self._found: dict[Counted, tuple[Tally, ...]] = {}

    def of(self, counted: Counted) -> tuple[Tally, ...]:
        """What a machine counts against."""
        found = self._found.get(counted)
        if found is None:
            found = tuple(
                self._tally(limit, counted) for limit in self._limits if _applies(limit, counted)
            )
            if len(self._found) > MOST_REMEMBERED:
                self._found.clear()
            self._found[counted] = found
        return found

    def take(self, counted: Counted, size: Size) -> None:
        self._add(counted, size, 1)

    def give_back(self, counted: Counted, size: Size) -> None:
        self._add(counted, size, -1)

    def reached(self, counted: Counted, size: Size, count: int) -> Tally | None:
        """The first limit that so many more machines would break."""
        for tally in self.of(counted):
            if not tally.has_room(size, count):
                return tally
        return None

    def too_small(self, counted: Counted, size: Size, count: int) -> Tally | None:
        """A limit that so many machines would break even if there were no others."""
        for tally in self.of(counted):
            if not tally.could_have_room(size, count):
                return tally
        return None

    def _add(self, counted: Counted, size: Size, sign: int) -> None:
        for tally in self.of(counted):
            tally.machines += sign
            tally.cpus += sign * size.cpus
            tally.memory += sign * size.memory

    def _tally(self, limit: Limit, counted: Counted) -> Tally:
        whose = counted.owner if limit.per is Per.OWNER else ""
        tally = self._tallies.get((limit.name, whose))
        if tally is None:
            tally = self._tallies[limit.name, whose] = Tally(limit, whose)
        return tally


def _applies(limit: Limit, counted: Counted) -> bool:
    return (
        any(is_one_of(counted.owner, counted.groups, pattern) for pattern in limit.owners)
        and any(fnmatchcase(counted.environment, pattern) for pattern in limit.environments)
        and (not limit.classes or not set(limit.classes).isdisjoint(counted.classes))
    )


def is_one_of(owner: str, groups: tuple[str, ...], pattern: str) -> bool:
    """Does a pattern of users' names, or `@group`, mean an owner?"""
    if pattern.startswith("@"):
        return any(fnmatchcase(group, pattern[1:]) for group in groups)
    return fnmatchcase(owner, pattern)
