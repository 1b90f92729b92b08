"""Aggregates that are kept up to date: what each thing contributes is remembered, so that a change
of one thing is one step back and one step forward.

Things are kept in buckets, by what a condition such as `m.host == host.name` compares; an aggregate
without one has a single bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from encamp.core.expressions.aggregate import CHOOSING, LISTING, Aggregate, Measure
from encamp.core.expressions.frame import Frame, NotKnown, Things, TooMuch
from encamp.core.expressions.language import STEPS
from encamp.core.expressions.logic import holds
from encamp.core.expressions.tally import LEFT_OUT, RULED_OUT, TALLIES, Members, Tally, admit
from encamp.core.world import Thing

Bucket = tuple[object, ...]
UNTOLD = object()
"""A result that is not compared: it counts as another one."""


class Filled:
    """One bucket."""

    __slots__ = ("left_out", "ruled_out", "tallied", "tally")

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.tallied = 0
        self.ruled_out = 0
        self.left_out: dict[str, None] = {}
        """Things of which it is not known whether, or with what, they count."""

    @property
    def empty(self) -> bool:
        return not (self.tallied or self.ruled_out or self.left_out)

    @property
    def unknown(self) -> bool:
        """Is there something, and nothing known about any of it? Then what they come to together
        is not known either: a sum of 0 would say that there is nothing."""
        return bool(self.left_out) and not self.tallied and not self.ruled_out

    def put_in(self, key: str, value: Any) -> None:
        if value is LEFT_OUT:
            self.left_out[key] = None
        elif value is RULED_OUT:
            self.ruled_out += 1
        else:
            self.tallied += 1
            self.tally.add(key, value)

    def take_out(self, key: str, value: Any) -> None:
        if value is LEFT_OUT:
            del self.left_out[key]
        elif value is RULED_OUT:
            self.ruled_out -= 1
        else:
            self.tallied -= 1
            self.tally.discard(key, value)


class Kept:
    def __init__(self, aggregate: Aggregate, things: Things, steps: int = STEPS) -> None:
        self.aggregate = aggregate
        self._things = things
        self._steps = steps
        self._new: Callable[[], Tally] = Members if aggregate.timed else TALLIES[aggregate.measure]
        self._contributions: dict[str, tuple[Bucket, Any]] = {}
        self._buckets: dict[Bucket, Filled] = {}
        self._before: dict[Bucket, Any] = {}
        """Results of buckets that have been touched since `settle`, as they were before."""
        for key in things[aggregate.selection.kind]:
            self.refresh(key)
        self._before.clear()

    def refresh(self, key: str) -> None:
        """Something about this thing has changed, or it has come or gone."""
        old = self._contributions.pop(key, None)
        thing = self._things[self.aggregate.selection.kind].get(key)
        new = None if thing is None else self._contribution(thing)
        if new is not None:
            self._contributions[key] = new
        if old is not None and new is not None and self._same(old, new):
            return
        if old is not None:
            self._touch(*old)
            self._take_out(key, *old)
        if new is not None:
            self._touch(*new)
            self._put_in(key, *new)

    def settle(self) -> list[Bucket]:
        """The buckets that have another result than when this was last asked."""
        before, self._before = self._before, {}
        return [
            bucket
            for bucket, result in before.items()
            if result is UNTOLD or not _equal(result, self._quick_result(bucket))
        ]

    def _same(self, old: tuple[Bucket, Any], new: tuple[Bucket, Any]) -> bool:
        if self._untold and new[1] is not RULED_OUT:
            return False
        return old == new and type(old[1]) is type(new[1])

    @property
    def _untold(self) -> bool:
        """Is the result too much to compare, or does it depend on the time?"""
        return self.aggregate.timed or self.aggregate.measure in LISTING

    def _touch(self, bucket: Bucket, value: Any) -> None:
        filled = self._buckets.get(bucket)
        if value is RULED_OUT and filled is not None and filled.ruled_out > 1:
            return  # One more or less of those makes no difference.
        if bucket not in self._before:
            self._before[bucket] = UNTOLD if self._untold else self._quick_result(bucket)

    def _quick_result(self, bucket: Bucket) -> Any:
        filled = self._buckets.get(bucket)
        if filled is not None and filled.unknown:
            return None
        try:
            return (filled.tally if filled else TALLIES[self.aggregate.measure]()).result()
        except NotKnown:
            return None

    def _contribution(self, thing: Thing) -> tuple[Bucket, Any] | None:
        """Where the thing counts, and with what; None if it does not."""
        selection = self.aggregate.selection
        frame = Frame(self._things, thing, 0.0, _no_aggregates, steps=self._steps)
        try:
            bucket = tuple(element.run(frame) for element, _ in selection.pairs)
            hash(bucket)
        except (NotKnown, TooMuch, TypeError, RecursionError):
            return None
        try:
            if not holds((condition.run for condition in selection.lasting), frame):
                return (bucket, RULED_OUT) if self._could_be_chosen(frame) else None
            value = self._value(frame, thing) if not self.aggregate.timed else True
        except (NotKnown, TooMuch, RecursionError):
            value = LEFT_OUT
        return bucket, value

    def _could_be_chosen(self, frame: Frame) -> bool:
        """Is this thing one of those that the conditions behind `if` choose from?"""
        if self.aggregate.measure not in CHOOSING:
            return False
        try:
            return holds((condition.run for condition in self.aggregate.selection.among), frame)
        except NotKnown:
            return False

    def _value(self, frame: Frame, thing: Thing) -> Any:
        value = self.aggregate.value
        if value is None:
            return thing.key if self.aggregate.measure is Measure.MEMBERS else True
        return admit(self.aggregate.measure, value.run(frame))

    def _put_in(self, key: str, bucket: Bucket, value: Any) -> None:
        filled = self._buckets.get(bucket)
        if filled is None:
            filled = self._buckets[bucket] = Filled(self._new())
        filled.put_in(key, value)

    def _take_out(self, key: str, bucket: Bucket, value: Any) -> None:
        filled = self._buckets[bucket]
        filled.take_out(key, value)
        if filled.empty:
            del self._buckets[bucket]

    def result(self, bucket: Bucket, frame: Frame) -> Any:
        filled = self._buckets.get(bucket)
        if filled is None:
            return TALLIES[self.aggregate.measure]().result()
        if self.aggregate.timed:
            filled = self._gone_through(filled, frame)
        elif self.aggregate.measure in LISTING:
            frame.spend(filled.tallied)
        if filled.unknown:
            raise NotKnown(self._why(filled, frame))
        return filled.tally.result()

    def left_out(self, bucket: Bucket, frame: Frame) -> int:
        filled = self._buckets.get(bucket)
        if filled is None:
            return 0
        if self.aggregate.timed:
            filled = self._gone_through(filled, frame)
        return len(filled.left_out)

    def _why(self, filled: Filled, outer: Frame) -> str:
        """The reason of one stands for all. It is worked out when it is asked for: reasons change
        more often than what is known, and mostly nobody wants to know."""
        kind, count = self.aggregate.selection.kind, len(filled.left_out)
        key = next(iter(filled.left_out))
        whole = f"it is not known of any of the {count} {kind}s: " if count > 1 else ""
        frame = Frame(self._things, None, outer.now, _no_aggregates, zone=outer.zone)
        frame.subject = self._things[kind].get(key)
        conditions = (*self.aggregate.selection.lasting, *self.aggregate.selection.timed)
        try:
            if frame.subject is not None and holds((one.run for one in conditions), frame):
                self._value(frame, frame.subject)
            reason = "it has just changed"
        except NotKnown as unknown:
            reason = unknown.reason
        except (TooMuch, RecursionError):
            reason = "it takes too many steps"
        return f"{whole}of {kind} '{key}', {reason}"

    def _gone_through(self, filled: Filled, outer: Frame) -> Filled:
        """What depends on the time is worked out from those that passed all other conditions."""
        assert isinstance(filled.tally, Members)
        passed = Filled(TALLIES[self.aggregate.measure]())
        passed.ruled_out = filled.ruled_out
        passed.left_out.update(filled.left_out)
        choosing = self.aggregate.measure in CHOOSING
        things = self._things[self.aggregate.selection.kind]
        frame = Frame(self._things, None, outer.now, _no_aggregates, zone=outer.zone)
        conditions = tuple(part.run for part in self.aggregate.selection.timed)
        for key in filled.tally.values:
            outer.spend(self.aggregate.weight)
            frame.subject = things[key]
            try:
                if holds(conditions, frame):
                    passed.put_in(key, self._value(frame, frame.subject))
                elif choosing:
                    passed.put_in(key, RULED_OUT)
            except NotKnown:
                passed.put_in(key, LEFT_OUT)
        return passed


def _equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _no_aggregates(aggregate: Aggregate, frame: Frame) -> Any:
    raise NotKnown("there is no aggregate inside another")


class Subjects:
    """For an aggregate whose bucket depends on the subject: which subjects ask for which bucket."""

    def __init__(self, aggregate: Aggregate, things: Things, steps: int = STEPS) -> None:
        assert aggregate.about is not None
        self.kind = aggregate.about
        self.aggregate = aggregate
        self._things = things
        self._steps = steps
        self._bucket: dict[str, Bucket] = {}
        self._asking: dict[Bucket, set[str]] = {}
        for key in things[self.kind]:
            self.refresh(key)

    def refresh(self, key: str) -> None:
        old = self._bucket.pop(key, None)
        if old is not None:
            asking = self._asking[old]
            asking.discard(key)
            if not asking:
                del self._asking[old]
        thing = self._things[self.kind].get(key)
        if thing is None:
            return
        frame = Frame(self._things, thing, 0.0, _no_aggregates, steps=self._steps)
        try:
            bucket = self.aggregate.bucket(frame)
            self._asking.setdefault(bucket, set()).add(key)
        except (NotKnown, TooMuch, TypeError, RecursionError):
            return
        self._bucket[key] = bucket

    def asking(self, buckets: Iterable[Bucket]) -> set[str]:
        found: set[str] = set()
        for bucket in buckets:
            found |= self._asking.get(bucket, set())
        return found
