"""Evaluating expressions about a world, and knowing which have to be evaluated again.

The cost of a change follows what the change touches: the expressions and aggregates that read that
fact, for the things it concerns. How many things and expressions there are besides does not matter.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from encamp.core.expressions import reading
from encamp.core.expressions.aggregate import Aggregate
from encamp.core.expressions.calls import Call, Prepared
from encamp.core.expressions.carrying import portable, shortened
from encamp.core.expressions.compiler import Shown
from encamp.core.expressions.expression import Expression, Outcome
from encamp.core.expressions.frame import (
    NO_CHANGES,
    TOO_MUCH,
    Changes,
    Frame,
    NotKnown,
    Run,
    TooMuch,
)
from encamp.core.expressions.kept import Kept, Subjects
from encamp.core.expressions.language import LARGEST_INT, STEPS
from encamp.core.expressions.part import FactRead
from encamp.core.expressions.watching import Watching
from encamp.core.world import Change, Known, Thing, Unknown, World
from encamp.model.property import Value


class Looking(NamedTuple):
    """An expression that reads something: about its subject, or about a fixed thing, which
    concerns all subjects."""

    expression: Expression
    whole: bool


class Evaluator:
    """One per world. Aggregates that are equal are kept up to date once, for all who ask."""

    def __init__(
        self, world: World, zone: datetime.tzinfo = datetime.UTC, steps: int = STEPS
    ) -> None:
        self.world = world
        self.zone = zone
        self.steps = steps
        """What one evaluation may cost."""
        self._added: dict[Expression | Call, None] = {}
        self._kept: dict[str, Kept] = {}
        self._subjects: dict[str, Subjects] = {}
        self._users: dict[str, dict[Expression | Call, None]] = {}
        self._watching: Watching[Looking | Kept | Subjects] = Watching(world.things)

    # ── what is watched ──────────────────────────────────────────────────────────────────────────

    def add(self, watched: Expression | Call) -> None:
        """Keep up to date what it needs. `update` tells about expressions that were added; calls
        are only prepared faster."""
        if watched in self._added:
            return
        self._added[watched] = None
        if isinstance(watched, Expression):
            for read in reading.facts(watched.uses):
                self._watching.watch(Looking(watched, not read.variable), read)
        for identity, aggregate in reading.aggregates(watched.uses).items():
            if identity not in self._users:
                self._users[identity] = {}
                self._keep(identity, aggregate)
            self._users[identity][watched] = None

    def remove(self, watched: Expression | Call) -> None:
        if watched not in self._added:
            return
        del self._added[watched]
        if isinstance(watched, Expression):
            for read in reading.facts(watched.uses):
                self._watching.ignore(Looking(watched, not read.variable), read)
        for identity in reading.aggregates(watched.uses):
            del self._users[identity][watched]
            if not self._users[identity]:
                del self._users[identity]
                self._let_go(identity)

    def _keep(self, identity: str, aggregate: Aggregate) -> None:
        kept = self._kept[identity] = Kept(aggregate, self.world.things, self.steps)
        for read in _watched(aggregate):
            self._watching.watch(kept, read)
        if aggregate.about is not None:
            subjects = self._subjects[identity] = Subjects(aggregate, self.world.things, self.steps)
            for read in _asked(aggregate):
                self._watching.watch(subjects, read)

    def _let_go(self, identity: str) -> None:
        kept = self._kept.pop(identity)
        for read in _watched(kept.aggregate):
            self._watching.ignore(kept, read)
        subjects = self._subjects.pop(identity, None)
        if subjects is not None:
            for read in _asked(subjects.aggregate):
                self._watching.ignore(subjects, read)

    def update(self, changes: Iterable[Change]) -> list[tuple[Expression, str | None]]:
        """What has to be evaluated again after these changes of the world, each once: expressions,
        with the key of their subject if they have one. A subject that is gone is among them."""
        batch = list(changes)
        for change in batch:
            self._watching.refresh(change)
        found: dict[tuple[Expression, str | None], None] = {}
        stale: dict[Kept, dict[str, None]] = {}
        wandering: dict[Subjects, dict[str, None]] = {}
        for change in batch:
            for listener, key in self._watching.touched(change):
                if isinstance(listener, Kept):
                    stale.setdefault(listener, {})[key] = None
                elif isinstance(listener, Subjects):
                    wandering.setdefault(listener, {})[key] = None
                elif listener.whole:
                    self._all_of(listener.expression, found)
                else:
                    found[listener.expression, key] = None
        for subjects, keys in wandering.items():
            for key in keys:
                subjects.refresh(key)
        for kept, keys in stale.items():
            for key in keys:
                kept.refresh(key)
            self._spread(kept, found)
        return list(found)

    def _spread(self, kept: Kept, found: dict[tuple[Expression, str | None], None]) -> None:
        """Expressions that read an aggregate, if it has another result."""
        buckets = kept.settle()
        if not buckets:
            return
        identity = kept.aggregate.identity
        subjects = self._subjects.get(identity)
        for user in self._users[identity]:
            if not isinstance(user, Expression):
                continue
            if subjects is None:
                self._all_of(user, found)
            else:
                for key in subjects.asking(buckets):
                    found[user, key] = None

    def _all_of(
        self, expression: Expression, found: dict[tuple[Expression, str | None], None]
    ) -> None:
        if expression.about is None:
            found[expression, None] = None
        else:
            for key in self.world.things[expression.about]:
                found[expression, key] = None

    # ── evaluating ───────────────────────────────────────────────────────────────────────────────

    def evaluate(
        self,
        expression: Expression,
        subject: str | None,
        now: float,
        *,
        changed: Changes | Iterable[Change] = (),
    ) -> Outcome:
        """The value, and what was seen. Of an expression that was not added aggregates are worked
        out from all there is; everything else is the same."""
        frame = self._frame(expression.about, subject, now, changed)
        if isinstance(frame, Unknown):
            return Outcome(frame, {})
        value = portable(_value(expression.run, frame))
        return Outcome(value, self._seen(expression.shown, frame))

    def value(
        self,
        expression: Expression,
        subject: str | None,
        now: float,
        *,
        changed: Changes | Iterable[Change] = (),
    ) -> Known:
        """The value alone, which is much faster. A whole number is as it was worked out."""
        frame = self._frame(expression.about, subject, now, changed)
        return frame if isinstance(frame, Unknown) else _value(expression.run, frame)

    def values(self, expression: Expression, now: float) -> Iterator[tuple[str, Known]]:
        """The value for each thing that it is about."""
        assert expression.about is not None
        things, run = self.world.things, expression.run
        frame = Frame(things, None, now, self._lookup, zone=self.zone, steps=self.steps)
        for key, thing in list(things[expression.about].items()):
            frame.subject = thing
            frame.budget = frame.steps
            yield key, _value(run, frame)

    def frame(self, now: float) -> Frame:
        """For many runs at one moment, with `value_for`."""
        return Frame(self.world.things, None, now, self._lookup, zone=self.zone, steps=self.steps)

    @staticmethod
    def value_for(expression: Expression, thing: Thing, frame: Frame) -> Known:
        """The value for a thing of the kind that the expression is about, if it is about any."""
        frame.subject = thing
        frame.budget = frame.steps
        value: Known = _value(expression.run, frame)
        return value

    def prepare(
        self,
        call: Call,
        subject: str | None,
        now: float,
        *,
        changed: Changes | Iterable[Change] = (),
    ) -> Prepared:
        """A call with the values of its arguments, or the reason why one has none."""
        frame = self._frame(call.about, subject, now, changed)
        if isinstance(frame, Unknown):
            return Prepared(call.function, {}, frame, {})
        arguments: dict[str, Any] = {}
        unknown: Unknown | None = None
        for name, run in call.arguments:
            value = _value(run, frame)
            if isinstance(value, Unknown):
                unknown = unknown or value
            else:
                arguments[name] = portable(value)
        return Prepared(call.function, arguments, unknown, self._seen(call.shown, frame))

    def _frame(
        self,
        about: str | None,
        subject: str | None,
        now: float,
        changed: Changes | Iterable[Change],
    ) -> Frame | Unknown:
        thing: Thing | None = None
        if about is not None:
            thing = self.world.things[about].get(subject) if subject is not None else None
            if thing is None:
                return Unknown(f"there is no {about} '{subject}'")
        if changed == ():
            changes = NO_CHANGES
        else:
            changes = changed if isinstance(changed, Changes) else Changes(changed)
        return Frame(self.world.things, thing, now, self._lookup, changes, self.zone, self.steps)

    def _lookup(self, aggregate: Aggregate, frame: Frame) -> Any:
        bucket = aggregate.bucket(frame)
        try:
            value = self._kept_or_made(aggregate).result(bucket, frame)
        except TypeError:
            raise NotKnown(f"{aggregate.text} compares with a list") from None
        except NotKnown as unknown:
            raise NotKnown(f"{aggregate.text} has no value: {unknown.reason}") from None
        if type(value) is int and not -LARGEST_INT <= value <= LARGEST_INT:
            raise NotKnown(f"{aggregate.text} is a number that is too large")
        return value

    def _kept_or_made(self, aggregate: Aggregate) -> Kept:
        return self._kept.get(aggregate.identity) or Kept(aggregate, self.world.things, self.steps)

    def _seen(self, shown: tuple[Shown, ...], run_before: Frame) -> dict[str, Value]:
        seen: dict[str, Value] = {}
        frame = Frame(
            run_before.things,
            run_before.subject,
            run_before.now,
            run_before.lookup,
            run_before.changes,
            run_before.zone,
            run_before.steps,
        )
        for one in shown:
            value = _value(one.run, frame)
            seen[one.text] = None if isinstance(value, Unknown) else shortened(value)
            if one.aggregate is not None:
                left_out = self._left_out(one.aggregate, frame)
                if left_out:
                    seen[f"left out of {one.text}"] = left_out
        return seen

    def _left_out(self, aggregate: Aggregate, frame: Frame) -> int:
        try:
            bucket = aggregate.bucket(frame)
            return self._kept_or_made(aggregate).left_out(bucket, frame)
        except (NotKnown, TooMuch, TypeError):
            return 0


def _watched(aggregate: Aggregate) -> list[FactRead]:
    """What a kept aggregate has to hear of: facts of its things, and their coming and going."""
    return [aggregate.itself, *reading.facts(aggregate.reads)]


def _asked(aggregate: Aggregate) -> list[FactRead]:
    """What decides which bucket a subject asks for."""
    return [
        read
        for _, outer in aggregate.selection.pairs
        for read in reading.facts(outer.reads)
        if read.variable
    ]


def _value(run: Run, frame: Frame) -> Any:
    try:
        return run(frame)
    except NotKnown as unknown:
        return Unknown(unknown.reason)
    except TooMuch:
        return TOO_MUCH
    except RecursionError:
        return Unknown("a value is nested too deeply to be compared")
