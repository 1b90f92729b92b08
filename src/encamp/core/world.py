"""What the manager knows, as expressions see it: things of several kinds, each with its facts.

Whoever changes it leaves a trail of changes, so that the cost of looking at it again follows what
changed and not how much there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from encamp.core.schema import Schema
from encamp.model.property import Value


class Unknown:
    """A fact that is not known, and why: `its plug-in failed: no such file`."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unknown) and other.reason == self.reason

    def __hash__(self) -> int:
        return hash(self.reason)

    def __repr__(self) -> str:
        return f"Unknown({self.reason!r})"


Known = Value | Unknown

MISSING = Unknown("it was never reported")

MOST_REMEMBERED = 1_000
"""Facts of one thing that are not known now and of which it is remembered what they were."""


class Thing(msgspec.Struct, eq=False, gc=False):
    """One host, machine, command ... and its facts. There may be very many, and none of them leads
    back to itself: the collector of garbage need not look at them, and would stop everything."""

    kind: str
    key: str
    facts: dict[str, Known] = {}
    _before: dict[str, Known] = {}
    """Of facts that are not known now: what they were when they last were."""

    def fact(self, name: str) -> Known:
        return self.facts.get(name, MISSING)

    def last_known(self, name: str, old: Known, new: Known) -> Known:
        """What a fact that changes from `old` to `new` was when it was last known. It is remembered
        for as long as the fact is not known, and no longer."""
        if not isinstance(old, Unknown):
            if isinstance(new, Unknown):
                self._before[name] = old
                if len(self._before) > MOST_REMEMBERED:
                    del self._before[next(iter(self._before))]
            return old
        if isinstance(new, Unknown):
            return self._before.get(name, MISSING)
        return self._before.pop(name, MISSING)


class Change(NamedTuple):
    kind: str
    key: str
    fact: str
    """Empty: the thing itself came (`old` is False) or went (`new` is False)."""
    old: Known
    new: Known
    last_known: Known = MISSING
    """`old`, or if that is not known what the fact was before that gap; not known if it never
    was."""


class World:
    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.things: dict[str, dict[str, Thing]] = {kind: {} for kind in schema.kinds}
        self._changes: list[Change] = []

    def put(self, kind: str, key: str, facts: Mapping[str, Known]) -> Thing:
        """Set some facts of a thing, which is there from now on. Only what differs is a change."""
        thing = self.things[kind].get(key)
        if thing is None:
            thing = self.things[kind][key] = Thing(kind, key)
            self._changes.append(Change(kind, key, "", False, True))
        for name, value in facts.items():
            old = thing.facts.get(name, MISSING)
            if type(old) is not type(value) or old != value:
                thing.facts[name] = value
                before = thing.last_known(name, old, value)
                self._changes.append(Change(kind, key, name, old, value, before))
        return thing

    def forget(self, kind: str, key: str, names: Iterable[str]) -> None:
        """These facts of a thing are not known any more."""
        thing = self.things[kind].get(key)
        for name in names if thing is not None else ():
            assert thing is not None
            old = thing.facts.pop(name, MISSING)
            if old != MISSING:
                before = thing.last_known(name, old, MISSING)
                self._changes.append(Change(kind, key, name, old, MISSING, before))

    def drop(self, kind: str, key: str) -> None:
        """The thing is no more."""
        if self.things[kind].pop(key, None) is not None:
            self._changes.append(Change(kind, key, "", True, False))

    def take_changes(self) -> list[Change]:
        """What has changed since this was last called, in order."""
        changes, self._changes = self._changes, []
        return changes
