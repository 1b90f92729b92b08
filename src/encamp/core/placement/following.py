"""What has changed for which hosts, for whoever comes to ask.

Requests read facts of hosts in as many ways as there are requests, and hosts tell news all the
time. So a change is only put down, at the same cost however many read that fact; those who read it
see it when they are looked at.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from encamp.core.expressions import Evaluator, Expression
from encamp.core.expressions.language import FEW_STEPS
from encamp.core.placement.ranks import facts_of_host
from encamp.core.placement.room import ROOM_FACTS
from encamp.core.world import Change, World

SEVERAL = 200
"""Hosts for which an expression has another value after one change. If there are more, it speaks
of all of them, and is not worked out anew for each change."""

SLACK = 1000


class Trail:
    """Which hosts something has changed about, in order. Whoever follows remembers how far it has
    come."""

    __slots__ = ("_base", "_names", "wide")

    def __init__(self) -> None:
        self._names: list[str] = []
        self._base = 0
        """How many were before the first that is remembered."""
        self.wide = 0
        """How often it has changed for all of them."""

    @property
    def end(self) -> int:
        return self._base + len(self._names)

    def add(self, name: str, hosts: int) -> None:
        """`hosts`: how many there are; who is behind by many times as much begins anew."""
        self._names.append(name)
        if len(self._names) > 4 * hosts + SLACK:
            half = len(self._names) // 2
            del self._names[:half]
            self._base += half

    def since(self, place: int) -> list[str] | None:
        """Those after a place; None: it is not remembered so far back."""
        return None if place < self._base else self._names[place - self._base :]


class Followed:
    """What one view follows, and how far."""

    __slots__ = ("_places", "_watched")

    def __init__(self, trails: Iterable[Trail] = (), watched: tuple[Expression, ...] = ()) -> None:
        self._places = {trail: (trail.end, trail.wide) for trail in trails}
        self._watched = watched

    @property
    def watched(self) -> tuple[Expression, ...]:
        """Expressions that are kept up to date for it."""
        return self._watched

    @property
    def news(self) -> int:
        """Counts up when there is something new."""
        return sum(trail.end + trail.wide for trail in self._places)

    def is_wide(self) -> bool:
        """Has something changed for all hosts?"""
        return any(trail.wide != wide for trail, (_, wide) in self._places.items())

    def names(self) -> set[str] | None:
        """Hosts that have news; None: nobody knows any more which."""
        found: set[str] = set()
        for trail, (place, _) in self._places.items():
            names = trail.since(place)
            if names is None:
                return None
            found.update(names)
        return found

    def catch_up(self) -> None:
        for trail in self._places:
            self._places[trail] = (trail.end, trail.wide)


class Following:
    def __init__(self, world: World, zone: datetime.tzinfo) -> None:
        self.evaluator = Evaluator(world, zone, FEW_STEPS)
        self._facts: dict[str, Trail] = {}
        """Where facts have changed that are read of hosts."""
        self._watched: dict[Expression, tuple[Trail, dict[Followed, None]]] = {}
        """Expressions that read more than that: where they may have another value, and for whom
        they are watched."""
        self.news = 0
        """How often anything has changed that some expression reads."""

    def __contains__(self, expression: Expression) -> bool:
        """Is it kept up to date?"""
        return expression in self._watched

    def __len__(self) -> int:
        """How many are."""
        return len(self._watched)

    def follow(self, expressions: Iterable[Expression]) -> Followed:
        trails: list[Trail] = []
        watched: list[Expression] = []
        for expression in expressions:
            facts = facts_of_host(expression)
            if facts is None:
                self.evaluator.add(expression)
                watched.append(expression)
                trails.append(self._watched.setdefault(expression, (Trail(), {}))[0])
                continue
            # What concerns its room is looked at anyway whenever a host is touched.
            read = facts.difference(ROOM_FACTS, ("",))
            trails += [self._facts.setdefault(fact, Trail()) for fact in read]
        followed = Followed(trails, tuple(watched))
        for expression in watched:
            self._watched[expression][1][followed] = None
        return followed

    def ignore(self, followed: Followed) -> None:
        """Nobody follows it any more."""
        for expression in followed.watched:
            users = self._watched[expression][1]
            del users[followed]
            if not users:
                del self._watched[expression]
                self.evaluator.remove(expression)

    def take(self, changes: list[Change], hosts: int) -> None:
        """Facts have changed; there are so many hosts."""
        if self._facts:
            for change in changes:
                if change.kind == "host":
                    self._take_of_host(change, hosts)
        if not self._watched:
            return
        found: dict[Expression, set[str | None]] = {}
        for expression, key in self.evaluator.update(changes):
            found.setdefault(expression, set()).add(key)
        for expression, keys in found.items():
            self.news += 1
            self._tell(self._watched[expression][0], keys, hosts)

    @staticmethod
    def _tell(trail: Trail, keys: set[str | None], hosts: int) -> None:
        # One that names no host in particular has the same value for all of them.
        if None in keys or len(keys) > SEVERAL:
            trail.wide += 1
            return
        for key in keys:
            trail.add(str(key), hosts)

    def _take_of_host(self, change: Change, hosts: int) -> None:
        if change.fact:
            trail = self._facts.get(change.fact)
            if trail is not None:
                self.news += 1
                trail.add(change.key, hosts)
            return
        # It has come or gone, with all that it tells.
        self.news += 1
        for trail in self._facts.values():
            trail.add(change.key, hosts)
