"""What it means that a trigger fires: its commands, with what they are told, in order."""

from __future__ import annotations

import msgspec

from encamp.core.actions import (
    Action,
    AskProperties,
    InOrder,
    IssueCommand,
    Notify,
    PlaceMachines,
    Step,
    Way,
)
from encamp.core.expressions import Changes, Evaluator
from encamp.core.triggers.calls import CannotBeDoneError, words
from encamp.core.triggers.causes import EVERYWHERE
from encamp.core.triggers.trigger import Steps, Trigger
from encamp.model.property import Value

MOST_ACTIONS = 10_000
"""Commands of one firing; a command to many hosts is one."""

SHOWN = 20
"""Actions of one firing that are told in the log."""


def work_out(
    trigger: Trigger,
    subject: str | None,
    evaluator: Evaluator,
    now: float,
    changed: Changes,
) -> tuple[Steps, dict[str, Value]]:
    """All that is to be done, and what was seen to find out. Either all of it can be told, or
    nothing is done."""
    steps = []
    seen: dict[str, Value] = {}
    for call in trigger.calls:
        prepared = evaluator.prepare(call, subject, now, changed=changed)
        seen |= prepared.seen
        if prepared.unknown is not None:
            raise CannotBeDoneError(f"{call.text}: {prepared.unknown.reason}")
        actions = trigger.doing.actions(prepared, evaluator.world)
        if len(actions) > MOST_ACTIONS:
            raise CannotBeDoneError(f"{call.text}: these are more than {MOST_ACTIONS:,} commands")
        if actions:
            steps.append(actions)
    if not steps:
        raise CannotBeDoneError("there is nobody to tell")
    return tuple(steps), seen


def in_words(steps: Steps) -> tuple[str, ...]:
    flat = [action for step in steps for action in step]
    told = tuple(words(action) for action in flat[:SHOWN])
    return told if len(flat) <= SHOWN else (*told, f"and {len(flat) - SHOWN} more")


def tells_programs(steps: Steps) -> bool:
    """Is what was seen wanted by others than people?"""
    told = (action for step in steps for action in step if isinstance(action, Notify))
    return any(action.way is Way.WEBHOOK for action in told)


def informed(steps: Steps, owner: str | None, seen: dict[str, Value]) -> Steps:
    """What people are told is whose business what was seen is; programs are told that, too."""

    def inform(action: Step) -> Step:
        if not isinstance(action, Notify):
            return action
        facts = seen if action.way is Way.WEBHOOK else action.facts
        return msgspec.structs.replace(action, owner=owner, facts=facts)

    return tuple(tuple(inform(action) for action in step) for step in steps)


def bundled(trigger: Trigger, subject: str | None, steps: Steps) -> list[Action]:
    """As what they go out: one after the other, if there are several."""
    if len(steps) <= 1:
        return [action for step in steps for action in step]
    return [InOrder(trigger.name, steps, subject or "", trigger.definition.ignore_errors)]


def touched(steps: Steps) -> dict[str, list[str]]:
    """The hosts on which something may change, with the names of the commands each is sent."""
    found: dict[str, list[str]] = {}
    for step in steps:
        for action in step:
            if isinstance(action, IssueCommand):
                for host in action.hosts:
                    found.setdefault(host, []).append(action.name)
            elif isinstance(action, PlaceMachines):
                found.setdefault(EVERYWHERE, [])
            elif isinstance(action, AskProperties):
                for host in (EVERYWHERE,) if action.hosts is None else action.hosts:
                    found.setdefault(host, [])
    return found
