"""Looks at all subjects of a trigger that are still to be made, a slice at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import msgspec

from encamp.core.actions import Action
from encamp.core.triggers.causes import Firing, all_of
from encamp.core.triggers.judging import Judge, Moment
from encamp.core.triggers.timing import Occasion
from encamp.core.triggers.trigger import Trigger

SLICE = 20_000
"""Looks in one step that need not be at once: less than a tenth of a second."""


class Scan(msgspec.Struct, eq=False):
    trigger: Trigger
    subjects: Iterable[str | None] | None
    """None: all there are when it begins."""
    occasion: Occasion
    at: float | None = None
    """The time that counts; None: when the look is made."""
    firings: tuple[Firing, ...] = ()
    """What that which calls for it may be an effect of."""


class Scans:
    def __init__(
        self, judge: Judge, all_subjects: Callable[[Trigger], Iterable[str | None]]
    ) -> None:
        self._judge = judge
        self._all_subjects = all_subjects
        self._waiting: deque[Scan] = deque()
        self._whole: dict[tuple[Trigger, Occasion], Scan] = {}
        """Those of all subjects that have not begun."""
        self._begun: Iterator[str | None] | None = None
        """What is left of the first of them."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, scan: Scan) -> None:
        """One of all subjects is the same as another that has not begun: triggers that ask for
        more than can be done are looked at less often, and nothing piles up."""
        if scan.subjects is None:
            key = (scan.trigger, scan.occasion)
            former = self._whole.get(key)
            if former is not None:
                former.at = scan.at
                former.firings = all_of(former.firings, scan.firings)
                return
            self._whole[key] = scan
        self._waiting.append(scan)

    def clear(self) -> None:
        self._waiting.clear()
        self._whole.clear()
        self._begun = None

    def triggers(self) -> set[Trigger]:
        """Those that have not been looked at as a whole yet."""
        return {scan.trigger for scan in self._waiting}

    def go_on(self, now: float, actions: list[Action]) -> None:
        """A slice of what is waiting."""
        left = SLICE
        while self._waiting and left > 0:
            scan = self._waiting[0]
            if self._begun is None:
                self._begun = iter(self._subjects(scan))
            at = now if scan.at is None else scan.at
            moment = Moment(now, actions, firings=scan.firings)
            for subject in islice(self._begun, left):
                left -= 1
                self._judge.look(scan.trigger, subject, scan.occasion, at, moment)
            if left > 0:
                self._waiting.popleft()
                self._begun = None

    def _subjects(self, scan: Scan) -> Iterable[str | None]:
        if scan.subjects is not None:
            return scan.subjects
        self._whole.pop((scan.trigger, scan.occasion), None)
        return self._all_subjects(scan.trigger)
