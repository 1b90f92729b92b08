"""When a trigger is looked at, and when it fires for what was seen: one table of rules, no clock.

| asked for                | looked at                              | fires                        |
| ------------------------ | -------------------------------------- | ---------------------------- |
| nothing                  | when something it reads changes; if it | when it becomes true, once   |
|                          | reads the time, also every 60 s        |                              |
| `ticks: T`               | every T                                | at every look that is true   |
| `ticks: T`, `once: yes`  | every T                                | at the first of them         |
| `on_update_check: yes`   | when something it reads changes, and   | like without                 |
|                          | every T if there are ticks             |                              |
| `once: no`               | when something it reads changes        | at every look that is true   |
| `every: E`               | when something it reads changes        | when it becomes true, and    |
|                          |                                        | while it is, again after E   |
| `hold: H`                | also when H is over                    | only if it was true all of H |
| `cooldown: C`            | also when C is over                    | not within C after it fired; |
|                          |                                        | what was kept back then      |
|                          |                                        | follows, if it is still true |

A value that is not known makes an expression unknown. That ends `hold`, since it was not seen to be
true, and does not end `once`, since it was not seen to be false.
"""

from __future__ import annotations

import enum

import msgspec

from encamp.core.actions import Judgement
from encamp.core.triggers.causes import Cause
from encamp.model.trigger import TriggerDefinition

DEFAULT_TICKS = 60.0
"""Seconds between two looks at a trigger that must be looked at now and then."""


class Truth(enum.Enum):
    TRUE = enum.auto()
    FALSE = enum.auto()
    UNKNOWN = enum.auto()


class Occasion(enum.Enum):
    """Why a trigger is looked at."""

    UPDATE = enum.auto()
    """Something it reads has changed."""
    TICK = enum.auto()
    DUE = enum.auto()
    """A time is over (hold, every, cooldown), or it was just loaded: nothing has changed."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """What is in effect: what a definition says, and what it leaves open."""

    hold: float
    once: bool
    every: float
    cooldown: float
    ticks: float
    on_update: bool
    momentary: bool
    """True only at the moment of a change: each is a new one."""

    @property
    def at_every_update(self) -> bool:
        """Does a change matter that leaves the expression as true as it was?"""
        return self.momentary or (self.on_update and not self.once and not self.every)

    @classmethod
    def of(cls, definition: TriggerDefinition, *, timed: bool, momentary: bool) -> Timing:
        """`timed`: it reads the time, so that it can become true without any change."""
        on_update = definition.on_update_check
        if on_update is None:
            on_update = momentary or not definition.ticks
        once = definition.once
        if once is None:
            once = not definition.ticks and not definition.every
        ticks = definition.ticks
        if not ticks and ((timed and not momentary) or not on_update):
            ticks = DEFAULT_TICKS
        return cls(
            hold=definition.hold,
            once=once,
            every=definition.every,
            cooldown=definition.cooldown,
            ticks=ticks,
            on_update=on_update,
            momentary=momentary,
        )


class Standing:
    """How a trigger stands with one subject. Kept only as long as there is something to remember:
    it is true, or it fired so recently that it cools down."""

    __slots__ = ("awaited", "cause", "done", "due", "fired", "kept_back", "since", "step", "told")

    def __init__(self) -> None:
        self.since: float | None = None
        """It has been true since then."""
        self.fired = 0.0
        """When it fired last; 0: never."""
        self.done = False
        """It has fired, and not been false since."""
        self.kept_back = False
        """It would have fired, but was cooling down."""
        self.due: float | None = None
        """When it must be looked at again though nothing changes."""
        self.cause: Cause | None = None
        """What made it true, for telling whether it fires on its own effect."""
        self.told = Judgement.FALSE
        """The last entry about it in the log."""
        self.step = 0
        """The number of the step in which it fired."""
        self.awaited = False
        """It is remembered from before a restart, and its subject has not appeared yet."""

    def copy(self) -> Standing:
        made = Standing()
        for name in self.__slots__:
            setattr(made, name, getattr(self, name))
        return made

    def turn_back(self, timing: Timing, now: float) -> None:
        """The clock was set back: nothing has happened later than now, or is due much later."""
        self.since = None if self.since is None else min(self.since, now)
        self.fired = min(self.fired, now)
        if self.due is not None:
            self.due = min(self.due, now + max(timing.hold, timing.every, timing.cooldown))


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    judgement: Judgement
    reason: str = ""


FALSE = Verdict(Judgement.FALSE)
UNKNOWN = Verdict(Judgement.UNKNOWN)
FIRED = Verdict(Judgement.FIRED)
ONCE = Verdict(Judgement.ONCE, "it has fired, and not been false since")


def judge(
    timing: Timing, standing: Standing, truth: Truth, occasion: Occasion, now: float
) -> Verdict:
    """What follows from one look. The standing is brought up to date, and says what is due next."""
    verdict = _judge(timing, standing, truth, occasion, now)
    if timing.momentary:
        # The moment is over: all that is left is when it fired.
        standing.since, standing.done, standing.kept_back = None, False, False
        cools = now < standing.fired + timing.cooldown
        standing.due = standing.fired + timing.cooldown if cools else None
    return verdict


def _judge(
    timing: Timing, standing: Standing, truth: Truth, occasion: Occasion, now: float
) -> Verdict:
    standing.due = None
    if truth is not Truth.TRUE:
        standing.since = None
        standing.kept_back = False
        if truth is Truth.UNKNOWN:
            return UNKNOWN
        standing.done = False
        if timing.on_update and now < standing.fired + timing.cooldown:
            standing.due = standing.fired + timing.cooldown
        return FALSE
    # A clock that was set back a little makes nothing younger than it is.
    standing.since = now if standing.since is None else min(standing.since, now)
    if now < standing.since + timing.hold:
        return _wait(timing, standing, Judgement.HOLDING, standing.since + timing.hold, now)
    if standing.done and timing.once:
        return ONCE
    if standing.done and timing.every and now < standing.fired + timing.every:
        return _wait(timing, standing, Judgement.COOLING, standing.fired + timing.every, now)
    is_news = occasion is not Occasion.DUE or bool(timing.every) or standing.kept_back
    if standing.done and not is_news:
        return ONCE
    if standing.fired and timing.cooldown and now < standing.fired + timing.cooldown:
        standing.kept_back = True
        return _wait(timing, standing, Judgement.COOLING, standing.fired + timing.cooldown, now)
    standing.fired = now
    standing.done = True
    standing.kept_back = False
    if timing.every and timing.on_update:
        standing.due = now + max(timing.every, timing.cooldown)
    return FIRED


WAITS = {
    Judgement.HOLDING: "it has not been true for long enough, {left:g} s to go",
    Judgement.COOLING: "it fired too recently, {left:g} s to go",
}


def _wait(
    timing: Timing, standing: Standing, judgement: Judgement, until: float, now: float
) -> Verdict:
    if timing.on_update:
        standing.due = until
    return Verdict(judgement, WAITS[judgement].format(left=round(until - now, 3)))


def is_worth_keeping(timing: Timing, standing: Standing, now: float) -> bool:
    """Would it be judged differently without what is remembered?"""
    return (
        standing.since is not None
        or standing.done
        or (standing.fired > 0 and now < standing.fired + timing.cooldown)
    )
