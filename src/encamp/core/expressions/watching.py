"""Who has to look again when a fact changes.

A listener registers the ways on which it reads facts. A change is followed back along those ways
to the things from which they start: when the load of a host changes, `machine.host.load1` is
another value for the machines of that host, and for no others.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

from encamp.core.expressions.frame import Things
from encamp.core.expressions.part import FactRead, Step
from encamp.core.world import Change

Listener = TypeVar("Listener", bound=Hashable)


class Referrers:
    """Of a fact that names another thing: which things name which."""

    def __init__(self, step: Step, things: Things) -> None:
        self.step = step
        self.users = 0
        self._things = things
        self._named: dict[str, str] = {}
        self._naming: dict[str, set[str]] = {}
        for key in things[step.kind]:
            self.refresh(key)

    def refresh(self, key: str) -> None:
        old = self._named.pop(key, None)
        if old is not None:
            naming = self._naming[old]
            naming.discard(key)
            if not naming:
                del self._naming[old]
        thing = self._things[self.step.kind].get(key)
        named = thing.facts.get(self.step.fact) if thing is not None else None
        if type(named) is str:
            self._named[key] = named
            self._naming.setdefault(named, set()).add(key)

    def of(self, key: str) -> set[str]:
        return self._naming.get(key, set())


class Watching(Generic[Listener]):
    def __init__(self, things: Things) -> None:
        self._things = things
        self._listeners: dict[Step, dict[tuple[Listener, tuple[Step, ...], str], int]] = {}
        """By the fact that changes: who listens, the steps back from there, and if the way starts
        from one fixed thing its key."""
        self._fixed: dict[tuple[str, str, str], dict[Listener, int]] = {}
        """The first step from a fixed thing is looked up by its key."""
        self._referrers: dict[Step, Referrers] = {}

    def watch(self, listener: Listener, read: FactRead) -> None:
        for index, step in enumerate(read.steps):
            back = tuple(reversed(read.steps[:index]))
            for place in {step, Step(step.kind, "")}:
                if read.variable or index:
                    entry = (listener, back, "" if read.variable else read.key)
                    entries = self._listeners.setdefault(place, {})
                    entries[entry] = entries.get(entry, 0) + 1
                else:
                    users = self._fixed.setdefault((step.kind, read.key, place.fact), {})
                    users[listener] = users.get(listener, 0) + 1
        for step in read.steps[:-1]:
            referrers = self._referrers.get(step)
            if referrers is None:
                referrers = self._referrers[step] = Referrers(step, self._things)
            referrers.users += 1

    def ignore(self, listener: Listener, read: FactRead) -> None:
        """Takes back one `watch` of the same."""
        for index, step in enumerate(read.steps):
            back = tuple(reversed(read.steps[:index]))
            for place in {step, Step(step.kind, "")}:
                if read.variable or index:
                    entry = (listener, back, "" if read.variable else read.key)
                    _less(self._listeners, place, entry)
                else:
                    _less(self._fixed, (step.kind, read.key, place.fact), listener)
        for step in read.steps[:-1]:
            referrers = self._referrers[step]
            referrers.users -= 1
            if not referrers.users:
                del self._referrers[step]

    def refresh(self, change: Change) -> None:
        """Before `touched` is asked about any change of a batch, this is told all of them."""
        if not self._referrers:
            return
        if change.fact:
            referrers = self._referrers.get(Step(change.kind, change.fact))
            if referrers is not None:
                referrers.refresh(change.key)
        else:
            for step, found in self._referrers.items():
                if step.kind == change.kind:
                    found.refresh(change.key)

    def touched(self, change: Change) -> Iterable[tuple[Listener, str]]:
        """Listeners, and the key of the thing from which they read what changed."""
        # Nobody listens to most of what changes.
        if (change.kind, change.fact) in self._listeners or (
            self._fixed and (change.kind, change.key, change.fact) in self._fixed
        ):
            return self._touched(change)
        return ()

    def _touched(self, change: Change) -> Iterator[tuple[Listener, str]]:
        for listener in self._fixed.get((change.kind, change.key, change.fact), ()):
            yield listener, change.key
        for listener, back, only in self._listeners.get(Step(change.kind, change.fact), ()):
            if not back:
                yield listener, change.key
                continue
            starts = {change.key}
            for step in back:
                referrers = self._referrers[step]
                starts = {key for start in starts for key in referrers.of(start)}
            for start in starts:
                if not only or only == start:
                    yield listener, start


Key = TypeVar("Key", bound=Hashable)
Entry = TypeVar("Entry", bound=Hashable)


def _less(table: dict[Key, dict[Entry, int]], key: Key, entry: Entry) -> None:
    entries = table[key]
    entries[entry] -= 1
    if not entries[entry]:
        del entries[entry]
        if not entries:
            del table[key]
