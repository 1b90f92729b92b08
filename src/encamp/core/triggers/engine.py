"""The triggers of a site at work: what changed goes in, what is to be done comes out.

Nothing here goes through all triggers or all hosts when something changes: the evaluator knows who
reads what, times are kept in one heap, and something is remembered of a trigger and a subject only
while the trigger is true for it or cools down. What must be gone through (a set that was just
loaded, an expression about the time on its tick) is done in slices, so that the manager goes on.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from encamp.core.actions import Action, Judged
from encamp.core.expressions import Changes, Evaluator, Expression
from encamp.core.triggers.causes import Firing, all_of
from encamp.core.triggers.judging import Judge, Moment
from encamp.core.triggers.memory import Memories, OneTrigger, TriggerMemory
from encamp.core.triggers.owning import OwnerOf
from encamp.core.triggers.scanning import Scan, Scans
from encamp.core.triggers.schedule import Appointment, Purpose
from encamp.core.triggers.stopping import release
from encamp.core.triggers.thresholds import Thresholds
from encamp.core.triggers.timing import Occasion
from encamp.core.triggers.trigger import Compiler, Trigger
from encamp.core.triggers.views import view_of
from encamp.core.world import Change, World
from encamp.model.command import CommandDefinition
from encamp.model.errors import Code, EncampError
from encamp.model.trigger import TriggerDefinition, TriggerView

MANY = 5000
"""Changes in one step that are not gone through one by one."""

PAUSE = 1.0
"""Seconds between two looks at all subjects, if something that concerns them all has changed."""

PATIENCE = 3600.0
"""Seconds that what is remembered of a subject waits for it to appear, after a restart."""

TOLERANCE = 1.0
"""Seconds by which the clock may go backwards without anybody caring."""


class Engine:
    def __init__(
        self,
        world: World,
        zone: datetime.tzinfo = datetime.UTC,
        owner_of: OwnerOf = lambda kind, key: None,
    ) -> None:
        """`zone`: by whose clock `hour` and `weekday` are told. `owner_of`: whose things are."""
        self.world = world
        self.triggers: dict[str, Trigger] = {}
        self._commands: Mapping[str, CommandDefinition] = {}
        self._zone = zone
        self._judge = Judge(world, owner_of)
        self._thresholds = Thresholds(world, self._judge.evaluator)
        self._readers: dict[Expression, list[Trigger]] = {}
        self._scans = Scans(self._judge, self._all_subjects)
        self._early: list[Action] = []
        """What the next step has to tell beside its own."""
        self._latest = 0.0
        """The time of the last step."""
        self._memories = Memories(self._judge.changed)
        self._patience: float | None = None
        """Until when subjects that were remembered may appear."""

    @property
    def looks(self) -> int:
        """How often an expression was worked out, in all."""
        return self._judge.looks

    # ── the set ──────────────────────────────────────────────────────────────────────────────────

    def load(
        self,
        definitions: Iterable[TriggerDefinition],
        commands: Mapping[str, CommandDefinition],
        now: float,
    ) -> None:
        """Replace all triggers. An error tells of all mistakes, and leaves everything as it was.
        A trigger that still means the same goes on where it was."""
        environments = self.world.things["environment"]
        made = Compiler(self.world.schema, commands, environments).compile_all(definitions)
        changes = self.world.take_changes()
        if self._latest:
            # What has happened so far is the former set's to judge, if it was at work.
            self._early += self.step(changes, now)
        former, self.triggers = self.triggers, {trigger.name: trigger for trigger in made}
        unfinished = self._scans.triggers()
        self._commands = commands
        self._readers = {}
        self._scans.clear()
        self._judge.schedule.clear()
        for trigger in made:
            if trigger.definition.enabled:
                self._readers.setdefault(trigger.expression, []).append(trigger)
        self._watch(now)
        anew = set()
        for trigger in made:
            old = former.pop(trigger.name, None)
            if old is not None and old.definition.means_the_same_as(trigger.definition):
                trigger.take_over(old)
                self._begin(trigger, now, anew=old in unfinished)
                continue
            anew.add(trigger.name)
            self._recall(trigger, now)
            self._begin(trigger, now, anew=True)
        self._judge.changed.update(anew, former)
        self._memories.give_up()
        self._judge.causes.reset(anew)

    def _watch(self, now: float) -> None:
        """Have every expression watched, in the cheapest way there is for it."""
        self._judge.evaluator = Evaluator(self.world, self._zone)
        self._thresholds = Thresholds(self.world, self._judge.evaluator)
        for expression, triggers in self._readers.items():
            if any(trigger.timing.at_every_update for trigger in triggers) or (
                not self._thresholds.add(expression)
            ):
                self._judge.evaluator.add(expression)
            for trigger in triggers:
                for call in trigger.calls:
                    self._judge.evaluator.add(call)
        self._thresholds.start(now)

    def _begin(self, trigger: Trigger, now: float, *, anew: bool) -> None:
        if not trigger.definition.enabled:
            return
        for subject, standing in trigger.standings.items():
            if standing.due is not None:
                self._judge.schedule.add(standing.due, trigger, subject)
        if trigger.timing.ticks:
            if trigger.next_tick is None:
                trigger.next_tick = now + trigger.timing.ticks
            self._judge.schedule.add(trigger.next_tick, trigger, purpose=Purpose.TICK)
        if trigger.next_wide_look is not None:
            self._judge.schedule.add(trigger.next_wide_look, trigger, purpose=Purpose.WIDE_LOOK)
        if anew and trigger.timing.on_update:
            self._scan(trigger, Occasion.DUE, None)

    def release(self, name: str = "") -> None:
        """Let a trigger that was stopped begin anew, or all of them: an operator has seen to it."""
        for trigger in self.triggers.values():
            if name in ("", trigger.name) and release(trigger):
                trigger.seen_whole = False
                self._judge.causes.reset({trigger.name})
                self._judge.changed.add(trigger.name)
                if trigger.timing.on_update and trigger.definition.enabled:
                    self._scan(trigger, Occasion.DUE, None)

    # ── steps ────────────────────────────────────────────────────────────────────────────────────

    def step(self, changes: Sequence[Change], now: float) -> list[Action]:
        """Something changed, or time has passed: what is to be done? Entries for the triggers' log
        are among it."""
        actions, self._early = self._early, []
        if now < self._latest - TOLERANCE:
            self._turn_back(now)
            self._judge.causes.clear()
        self._latest = now
        self._judge.steps += 1
        if changes and self.triggers:
            self._take(changes, now, actions)
        moment = Moment(now, actions)
        for appointment in self._judge.schedule.pop_due(now):
            self._keep_appointment(appointment, moment)
        self._scans.go_on(now, actions)
        if self._patience is not None and self._patience <= now:
            self._forget_strangers()
        return actions

    def next_look(self) -> float | None:
        """When `step` must be called though nothing changes; 0: at once."""
        if self._scans or self._early:
            return 0.0
        times = (self._judge.schedule.next(), self._patience)
        return min((time for time in times if time is not None), default=None)

    def _turn_back(self, now: float) -> None:
        """The clock was set back. Nobody shall wait for a time that comes again."""
        for trigger in self.triggers.values():
            if trigger.next_tick is not None:
                trigger.next_tick = min(trigger.next_tick, now + trigger.timing.ticks)
                self._judge.schedule.add(trigger.next_tick, trigger, purpose=Purpose.TICK)
            if trigger.next_wide_look is not None:
                trigger.next_wide_look = now
                self._judge.schedule.add(now, trigger, purpose=Purpose.WIDE_LOOK)
            trigger.last_wide_look = min(trigger.last_wide_look, now)
            for subject, standing in trigger.standings.items():
                standing.turn_back(trigger.timing, now)
                if standing.due is not None:
                    self._judge.schedule.add(standing.due, trigger, subject)

    def _take(self, changes: Sequence[Change], now: float, actions: list[Action]) -> None:
        self._forget_namesakes(changes)
        firings = self._judge.causes.of_changes(changes, self.world, now)
        moment = Moment(now, actions, Changes(changes), firings)
        updates = self._thresholds.of_updates(self._judge.evaluator.update(changes), now)
        if len(changes) > MANY:
            self._take_many(updates, moment)
            return
        for expression, subject in chain(self._thresholds.of_changes(changes), updates):
            for trigger in self._readers.get(expression, ()):
                if trigger.timing.on_update:
                    self._judge.look(trigger, subject, Occasion.UPDATE, now, moment)
                else:
                    self._see_later(trigger, (subject,))
        for expression in self._thresholds.take_wide():
            for trigger in self._readers.get(expression, ()):
                if trigger.timing.on_update:
                    self._look_widely(trigger, now, moment.firings)
                else:
                    trigger.seen_whole = False

    def _forget_namesakes(self, changes: Sequence[Change]) -> None:
        """What went, and came again before anybody looked, is another thing of the same name."""
        for change in changes:
            things = self.world.things.get(change.kind, {})
            if change.fact or change.new is not False or change.key not in things:
                continue
            for trigger in self.triggers.values():
                if trigger.expression.about == change.kind:
                    trigger.standings.pop(change.key, None)

    def _take_many(self, updates: Iterable[tuple[Expression, str | None]], moment: Moment) -> None:
        """So much has changed at once, since a whole site was found perhaps, that it is gone
        through in slices."""
        found: dict[Expression, list[str | None]] = {}
        for expression, subject in updates:
            found.setdefault(expression, []).append(subject)
        for expression, subjects in found.items():
            for trigger in self._readers.get(expression, ()):
                if trigger.timing.momentary:
                    for subject in subjects:
                        self._judge.look(trigger, subject, Occasion.UPDATE, moment.now, moment)
                elif trigger.timing.on_update:
                    self._scans.add(
                        Scan(trigger, subjects, Occasion.UPDATE, firings=moment.firings)
                    )
                else:
                    self._see_later(trigger, subjects)
        for expression in self._thresholds.begin_anew():
            for trigger in self._readers.get(expression, ()):
                if trigger.timing.on_update:
                    self._scan(trigger, Occasion.UPDATE, None, moment.firings)
                else:
                    trigger.seen_whole = False
                    self._see_later(trigger, tuple(trigger.standings))

    def _see_later(self, trigger: Trigger, subjects: Iterable[str | None]) -> None:
        """At the next tick; who is gone is forgotten at once."""
        trigger.unseen.update(
            subject for subject in subjects if not self._judge.is_gone(trigger, subject)
        )

    def _look_widely(self, trigger: Trigger, now: float, firings: tuple[Firing, ...]) -> None:
        """Look at all subjects, but not again and again when much changes in a short time."""
        trigger.wide_firings = all_of(trigger.wide_firings, firings)
        if trigger.next_wide_look is None:
            trigger.next_wide_look = max(now, trigger.last_wide_look + PAUSE)
            self._judge.schedule.add(trigger.next_wide_look, trigger, purpose=Purpose.WIDE_LOOK)

    def _keep_appointment(self, appointment: Appointment, moment: Moment) -> None:
        trigger = appointment.trigger
        if appointment.purpose is Purpose.SUBJECT:
            self._judge.look(trigger, appointment.subject, Occasion.DUE, moment.now, moment)
            return
        if appointment.purpose is Purpose.WIDE_LOOK:
            trigger.next_wide_look, trigger.last_wide_look = None, moment.now
            firings, trigger.wide_firings = trigger.wide_firings, ()
            self._scan(trigger, Occasion.UPDATE, None, firings)
            return
        ticks = trigger.timing.ticks
        # Of ticks that were missed one is made up for; those to come keep their rhythm.
        at = appointment.at + (moment.now - appointment.at) // ticks * ticks
        trigger.next_tick = max(at + ticks, math.nextafter(moment.now, math.inf))
        self._judge.schedule.add(trigger.next_tick, trigger, purpose=Purpose.TICK)
        if trigger.must_see_all():
            trigger.seen_whole = True
            trigger.unseen.clear()
            self._scan(trigger, Occasion.TICK, at)
            return
        subjects = [*trigger.unseen, *(trigger.standings.keys() - trigger.unseen)]
        trigger.unseen.clear()
        for subject in subjects:
            self._judge.look(trigger, subject, Occasion.TICK, at, moment)

    def _scan(
        self,
        trigger: Trigger,
        occasion: Occasion,
        at: float | None,
        firings: tuple[Firing, ...] = (),
    ) -> None:
        """Look at all subjects, as soon as there is time."""
        self._scans.add(Scan(trigger, None, occasion, at, firings))

    def _all_subjects(self, trigger: Trigger) -> Iterable[str | None]:
        """All for which it could be true, or is."""
        subjects = self._thresholds.candidates(trigger.expression)
        known = trigger.standings.keys() - set(subjects)
        return chain(subjects, known)

    # ── what is remembered ───────────────────────────────────────────────────────────────────────

    @property
    def memory_changed(self) -> bool:
        """Is there something new to write down?"""
        return bool(self._judge.changed)

    def memory(self) -> TriggerMemory:
        """What must survive a restart."""
        return self._memories.whole(self.triggers)

    def memory_changes(self) -> dict[str, OneTrigger | None]:
        """What must survive a restart, of those triggers for which it has changed; None: nothing
        of it any more."""
        return self._memories.changes(self.triggers)

    def write_again(self, names: Iterable[str]) -> None:
        """What was handed out of these could not be written down."""
        self._judge.changed.update(names)

    def restore(self, memory: TriggerMemory, now: float) -> None:
        """Go on where another run was: after `load`, before the first step. What belongs to
        triggers that could not be loaded waits until they are."""
        self._memories.unplaced = {part.definition.name: part for part in memory.triggers}
        for trigger in self.triggers.values():
            if not self._recall(trigger, now):
                continue
            if trigger.next_tick is not None:
                self._judge.schedule.add(trigger.next_tick, trigger, purpose=Purpose.TICK)
            if trigger.timing.on_update and trigger.definition.enabled:
                self._scans.add(Scan(trigger, tuple(trigger.standings), Occasion.DUE))

    def _recall(self, trigger: Trigger, now: float) -> bool:
        if not self._memories.recall(trigger, now):
            return False
        self._patience = now + PATIENCE
        return True

    def _forget_strangers(self) -> None:
        """Subjects that were remembered, and have not appeared in all the time since."""
        self._patience = None
        for trigger in self.triggers.values():
            strangers = [key for key, known in trigger.standings.items() if known.awaited]
            for subject in strangers:
                del trigger.standings[subject]
            if strangers:
                self._judge.changed.add(trigger.name)

    # ── seeing it ────────────────────────────────────────────────────────────────────────────────

    def views(self) -> list[TriggerView]:
        return [view_of(self.triggers[name]) for name in sorted(self.triggers)]

    def view(self, name: str) -> TriggerView | None:
        """Of one trigger, if there is one of this name: it may be true for very many."""
        found = self.triggers.get(name)
        return None if found is None else view_of(found)

    def test(self, asked: str | TriggerDefinition, now: float) -> list[Judged]:
        """What a trigger would do for each subject now. Nothing is done, and nothing changes."""
        if isinstance(asked, TriggerDefinition):
            (trigger,) = Compiler(self.world.schema, self._commands).compile_all([asked])
        else:
            trigger = self._named(asked)
        about = trigger.expression.about
        subjects = [None] if about is None else sorted(self.world.things[about])
        return [self._judge.would(trigger, subject, now) for subject in subjects]

    def _named(self, name: str) -> Trigger:
        found = self.triggers.get(name)
        if found is None:
            known = ", ".join(sorted(self.triggers)[:20]) or "none"
            raise EncampError(Code.USAGE, f"There is no trigger '{name}'.", f"There are: {known}.")
        return found
