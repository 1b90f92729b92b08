"""What an expression sees while it runs, and the ways in which a run can end early."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from encamp.core.expressions.language import STEPS
from encamp.core.world import Change, Known, Thing, Unknown

if TYPE_CHECKING:
    from encamp.core.expressions.aggregate import Aggregate


class NotKnown(Exception):  # noqa: N818 - it is no error, it is the third truth value
    """A value is not known, and why."""

    @property
    def reason(self) -> str:
        return str(self.args[0])


class TooMuch(Exception):  # noqa: N818 - nothing may take it for a value that is not known
    """The run has used up what it may cost. Unlike NotKnown it ends the whole run."""


class Changes:
    """What changed at one moment, looked up by `changed(...)` and `previous(...)`. Make one per
    batch and hand it to every evaluation of that batch.

    A fact has changed if it has another value than when it was last known. A host that is lost and
    comes back is no news for whoever waits for a new kernel, nor is one that joins."""

    __slots__ = ("old",)

    def __init__(self, changes: Iterable[Change] = ()) -> None:
        self.old: dict[tuple[str, str, str], Known] = {}
        """What it was, of each fact that has changed."""
        for kind, key, fact, _, new, before in changes:
            if isinstance(before, Unknown) or isinstance(new, Unknown):
                continue
            if type(before) is not type(new) or before != new:
                self.old.setdefault((kind, key, fact), before)


NO_CHANGES = Changes()

Things = Mapping[str, Mapping[str, Thing]]
Lookup = Callable[["Aggregate", "Frame"], Any]


class Frame:
    """One run. Closures read from it and take steps from its budget."""

    __slots__ = (
        "_clock",
        "budget",
        "changes",
        "lookup",
        "now",
        "slots",
        "steps",
        "subject",
        "things",
        "zone",
    )

    def __init__(
        self,
        things: Things,
        subject: Thing | None,
        now: float,
        lookup: Lookup,
        changes: Changes = NO_CHANGES,
        zone: datetime.tzinfo = datetime.UTC,
        steps: int = STEPS,
    ) -> None:
        self.things = things
        self.subject: Any = subject
        """A Thing whenever a closure asks for it: whoever starts a run sees to that."""
        self.now = now
        self.lookup = lookup
        self.changes = changes
        self.zone = zone
        self.steps = steps
        """What each run may cost."""
        self.budget = steps
        self.slots: dict[str, Any] = {}
        """Loop variables over lists."""
        self._clock: datetime.datetime | None = None

    def spend(self, steps: int) -> None:
        self.budget -= steps
        if self.budget < 0:
            raise TooMuch

    @property
    def clock(self) -> datetime.datetime:
        if self._clock is None:
            try:
                self._clock = datetime.datetime.fromtimestamp(self.now, self.zone)
            except (ValueError, OverflowError, OSError):
                raise NotKnown(f"{self.now} is no time that a calendar has") from None
        return self._clock


TOO_MUCH = Unknown(
    "it takes more steps than an expression may; make the lists it goes through shorter"
)
Run = Callable[[Frame], Any]
