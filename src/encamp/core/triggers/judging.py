"""One look at one trigger for one subject: what is seen, what follows, what is told about it."""

from __future__ import annotations

from encamp.core.actions import Action, Judged, Judgement
from encamp.core.expressions import Changes, Evaluator
from encamp.core.triggers.calls import CannotBeDoneError
from encamp.core.triggers.causes import Cause, Causes, Firing, Reasons, follow
from encamp.core.triggers.firing import (
    bundled,
    in_words,
    informed,
    tells_programs,
    touched,
    work_out,
)
from encamp.core.triggers.owning import OwnerOf, Sight
from encamp.core.triggers.schedule import Schedule
from encamp.core.triggers.stopping import stop, why_stopped
from encamp.core.triggers.timing import (
    Occasion,
    Standing,
    Truth,
    Verdict,
    is_worth_keeping,
    judge,
)
from encamp.core.triggers.trigger import Trigger
from encamp.core.world import Known, Unknown, World
from encamp.model.property import Value

RETRY = 60.0
"""Seconds after which a trigger whose command could not be worked out is looked at again."""

NOTHING_CHANGED = Changes()


class Moment:
    """What the looks of one step have in common."""

    __slots__ = ("actions", "changed", "firings", "now", "reasons")

    def __init__(
        self,
        now: float,
        actions: list[Action],
        changed: Changes = NOTHING_CHANGED,
        firings: tuple[Firing, ...] = (),
    ) -> None:
        self.now = now
        self.actions = actions
        """What the looks lead to is added here."""
        self.changed = changed
        self.firings = firings
        """What the changes may be the effects of."""
        self.reasons = Reasons(firings)


class Judge:
    def __init__(self, world: World, owner_of: OwnerOf) -> None:
        self.world = world
        self._owner_of = owner_of
        self.evaluator = Evaluator(world)
        self.schedule = Schedule()
        self.causes = Causes()
        self.changed: set[str] = set()
        """Triggers that have something new to remember."""
        self.steps = 0
        """The number of the step that is being made."""
        self.looks = 0
        """How often an expression was worked out."""

    def look(
        self, trigger: Trigger, subject: str | None, occasion: Occasion, at: float, moment: Moment
    ) -> None:
        """`at`: the time that counts; on a tick, the tick's, however late it is."""
        if self.is_gone(trigger, subject) or why_stopped(trigger, subject, self.world):
            return
        expression = trigger.expression
        standing = trigger.standings.get(subject)
        self.looks += 1
        value = self.evaluator.value(expression, subject, moment.now, changed=moment.changed)
        truth = truth_of(value)
        if standing is None:
            if truth is Truth.FALSE and not trigger.journal.unknown:
                return
            standing = Standing()
        standing.awaited = False
        if occasion is Occasion.UPDATE and standing.step == self.steps:
            # What is new in this step was answered already.
            occasion = Occasion.DUE
        former = standing.copy()
        verdict = judge(trigger.timing, standing, truth, occasion, at)
        begins = former.since is None or verdict.judgement is Judgement.FIRED
        if begins and truth is Truth.TRUE and occasion is Occasion.UPDATE:
            standing.cause = self.causes.cause(trigger.name, subject, moment.reasons)
        if verdict.judgement is Judgement.FIRED:
            # What has a time of its own is no answer to anything.
            by_time = occasion is Occasion.TICK or (
                occasion is Occasion.DUE and (former.done or former.kept_back)
            )
            cause = None if by_time or trigger.timing.cooldown else standing.cause
            if not self._fire(trigger, subject, standing, former, cause, moment):
                return
        else:
            self._tell(trigger, subject, standing, verdict, moment)
        self._keep(trigger, subject, standing, former, at)

    def is_gone(self, trigger: Trigger, subject: str | None) -> bool:
        """Is there no such subject any more? Then nothing about it is remembered."""
        if subject is None or subject in self.world.things[trigger.expression.about or ""]:
            return False
        standing = trigger.standings.get(subject)
        if standing is not None and not standing.awaited:
            del trigger.standings[subject]
        trigger.journal.unknown.discard(subject)
        if trigger.stopped_for.pop(subject, None) is not None:
            self.changed.add(trigger.name)
        return True

    def _keep(
        self,
        trigger: Trigger,
        subject: str | None,
        standing: Standing,
        former: Standing,
        at: float,
    ) -> None:
        if not is_worth_keeping(trigger.timing, standing, at):
            trigger.standings.pop(subject, None)
            if former.fired > 0:
                self.changed.add(trigger.name)
            return
        trigger.standings[subject] = standing
        if standing.done is not former.done:
            self.changed.add(trigger.name)
        if standing.due is not None and standing.due != former.due:
            self.schedule.add(standing.due, trigger, subject)

    # ── firing ───────────────────────────────────────────────────────────────────────────────────

    def _fire(
        self,
        trigger: Trigger,
        subject: str | None,
        standing: Standing,
        former: Standing,
        cause: Cause | None,
        moment: Moment,
    ) -> bool:
        """Was it not stopped?"""
        try:
            steps, seen = work_out(trigger, subject, self.evaluator, moment.now, moment.changed)
        except CannotBeDoneError as error:
            standing.fired, standing.done = former.fired, former.done
            standing.kept_back = former.kept_back
            standing.due = moment.now + RETRY if trigger.timing.on_update else None
            verdict = Verdict(Judgement.FAILED, str(error))
            self._tell(trigger, subject, standing, verdict, moment)
            return True
        firing = follow(trigger.name, subject, cause)
        repeats = trigger.definition.repeats
        if repeats and firing.own.times > repeats:
            self._stop(trigger, subject, firing, moment)
            return False
        self.causes.acted(firing, touched(steps), moment.now)
        standing.cause = None
        standing.step = self.steps
        trigger.fired += 1
        trigger.last_fired = moment.now
        self.changed.add(trigger.name)
        told = in_words(steps)
        verdict = Verdict(Judgement.FIRED)
        self._tell(trigger, subject, standing, verdict, moment, seen=seen, actions=told)
        if tells_programs(steps):
            outcome = self.evaluator.evaluate(
                trigger.expression, subject, moment.now, changed=moment.changed
            )
            seen = outcome.seen | seen
        steps = informed(steps, self._owner(trigger, subject), seen)
        moment.actions += bundled(trigger, subject, steps)
        return True

    def _stop(self, trigger: Trigger, subject: str | None, firing: Firing, moment: Moment) -> None:
        why = stop(trigger, subject, firing, self.world)
        self.changed.add(trigger.name)
        verdict = Verdict(Judgement.STOPPED, why)
        self._tell(trigger, subject, Standing(), verdict, moment)

    # ── telling ──────────────────────────────────────────────────────────────────────────────────

    def _tell(
        self,
        trigger: Trigger,
        subject: str | None,
        standing: Standing,
        verdict: Verdict,
        moment: Moment,
        *,
        seen: dict[str, Value] | None = None,
        actions: tuple[str, ...] = (),
    ) -> None:
        """Add an entry to the log, if it is news and not too much."""
        judgement = verdict.judgement
        journal = trigger.journal
        if not journal.is_news(subject, standing.told, judgement):
            return
        standing.told = judgement
        if not journal.may_tell(judgement, moment.now):
            return
        # Only now, since keeping what was seen costs more than seeing it.
        outcome = self.evaluator.evaluate(
            trigger.expression, subject, moment.now, changed=moment.changed
        )
        reason = verdict.reason
        if isinstance(outcome.value, Unknown):
            reason = outcome.value.reason
        withheld = journal.withheld(judgement)
        if withheld:
            said = f"{withheld} entries before this were left out"
            reason = f"{reason}; {said}" if reason else said
        moment.actions.append(
            Judged(
                trigger=trigger.name,
                at=moment.now,
                judgement=judgement,
                subject=subject or "",
                reason=reason,
                seen={**outcome.seen, **(seen or {})},
                actions=actions,
                owner=self._owner(trigger, subject),
            )
        )

    def _owner(self, trigger: Trigger, subject: str | None) -> str | None:
        """Whose business it is what a look has shown."""
        if trigger.sight is Sight.OPEN:
            return ""
        about = trigger.expression.about
        if trigger.sight is Sight.OTHERS or about is None or subject is None:
            return None
        return self._owner_of(about, subject) or None

    # ── testing ──────────────────────────────────────────────────────────────────────────────────

    def would(self, trigger: Trigger, subject: str | None, now: float) -> Judged:
        """What a look would lead to now; nothing is changed by it."""
        outcome = self.evaluator.evaluate(trigger.expression, subject, now, changed=NOTHING_CHANGED)
        found = trigger.standings.get(subject)
        standing = found.copy() if found is not None else Standing()
        verdict = judge(trigger.timing, standing, truth_of(outcome.value), Occasion.UPDATE, now)
        judgement, reason, seen = verdict.judgement, verdict.reason, outcome.seen
        told: tuple[str, ...] = ()
        if isinstance(outcome.value, Unknown):
            reason = outcome.value.reason
        elif judgement is Judgement.FIRED:
            try:
                steps, more = work_out(trigger, subject, self.evaluator, now, NOTHING_CHANGED)
            except CannotBeDoneError as error:
                judgement, reason = Judgement.FAILED, str(error)
            else:
                told, seen = in_words(steps), {**seen, **more}
            if why := why_stopped(trigger, subject, self.world):
                judgement, reason = Judgement.STOPPED, why
        elif judgement is Judgement.FALSE and trigger.timing.momentary:
            reason = "it is true only at the moment of a change"
        return Judged(
            trigger=trigger.name,
            at=now,
            judgement=judgement,
            subject=subject or "",
            reason=reason,
            seen=seen,
            actions=told,
        )


def truth_of(value: Known) -> Truth:
    if isinstance(value, Unknown):
        return Truth.UNKNOWN
    return Truth.TRUE if value else Truth.FALSE
