"""What a trigger remembers from one look to the next, and over a restart of the manager."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from encamp.core.triggers.timing import Standing
from encamp.core.triggers.trigger import Trigger
from encamp.model.trigger import TriggerDefinition


class SubjectMemory(msgspec.Struct, frozen=True, array_like=True):
    """Of one trigger and one subject."""

    fired: float
    """When it fired for it last; 0: never."""
    done: bool
    """It has fired, and not been false since."""


class OneTrigger(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    definition: TriggerDefinition
    """What it was: a trigger that was changed begins anew."""
    fired: int = 0
    last_fired: float = 0.0
    stopped: str = ""
    stopped_for: dict[str, str] = {}
    next_tick: float | None = None
    subjects: dict[str, SubjectMemory] = {}


class TriggerMemory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    triggers: tuple[OneTrigger, ...] = ()


class Memories:
    """What must survive a restart, and what did."""

    def __init__(self, changed: set[str]) -> None:
        self.changed = changed
        """Triggers that have something new to remember."""
        self.unplaced: dict[str, OneTrigger] = {}
        """What was remembered of triggers that are not there, since the files were refused."""

    def whole(self, triggers: Mapping[str, Trigger]) -> TriggerMemory:
        self.changed.clear()
        parts = (self._part(name, triggers) for name in {**triggers, **self.unplaced})
        return TriggerMemory(triggers=tuple(part for part in parts if part is not None))

    def changes(self, triggers: Mapping[str, Trigger]) -> dict[str, OneTrigger | None]:
        names = sorted(self.changed)
        self.changed.clear()
        return {name: self._part(name, triggers) for name in names}

    def _part(self, name: str, triggers: Mapping[str, Trigger]) -> OneTrigger | None:
        trigger = triggers.get(name)
        return self.unplaced.get(name) if trigger is None else remembered(trigger)

    def recall(self, trigger: Trigger, now: float) -> bool:
        """Is there something from another run that belongs to it?"""
        former = self.unplaced.pop(trigger.name, None)
        if former is None or not trigger.definition.means_the_same_as(former.definition):
            return False
        recall(trigger, former, now)
        return True

    def give_up(self) -> None:
        """Those that are not there now have been taken out of the files."""
        self.changed.update(self.unplaced)
        self.unplaced.clear()


def remembered(trigger: Trigger) -> OneTrigger | None:
    """None: there is nothing."""
    stopped = trigger.stopped or trigger.stopped_for
    if not trigger.fired and not stopped and trigger.next_tick is None:
        return None
    return OneTrigger(
        definition=trigger.definition,
        fired=trigger.fired,
        last_fired=trigger.last_fired,
        stopped=trigger.stopped,
        stopped_for=dict(trigger.stopped_for),
        next_tick=trigger.next_tick,
        subjects={
            subject or "": SubjectMemory(standing.fired, standing.done)
            for subject, standing in trigger.standings.items()
            if standing.fired
        },
    )


def recall(trigger: Trigger, former: OneTrigger, now: float) -> None:
    """Make a trigger what it was in another run of the manager."""
    trigger.fired, trigger.last_fired = former.fired, former.last_fired
    trigger.stopped, trigger.stopped_for = former.stopped, dict(former.stopped_for)
    if former.next_tick is not None and trigger.timing.ticks:
        trigger.next_tick = min(former.next_tick, now + trigger.timing.ticks)
    for key, known in former.subjects.items():
        standing = Standing()
        standing.fired, standing.done = known.fired, known.done
        standing.awaited = True
        trigger.standings[None if trigger.expression.about is None else key] = standing
