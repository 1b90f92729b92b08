"""What can be told about a trigger that is at work."""

from __future__ import annotations

from encamp.core.triggers.trigger import Trigger
from encamp.model.trigger import TriggerView

SHOWN = 5
"""Of those for which it is stopped, so many are named."""


def view_of(trigger: Trigger) -> TriggerView:
    definition, timing = trigger.definition, trigger.timing
    return TriggerView(
        name=trigger.name,
        expression=definition.when.text,
        commands=tuple(passage.text for passage in definition.do),
        place=f"{definition.path}:{definition.line}",
        options={
            "hold": timing.hold,
            "once": timing.once,
            "every": timing.every,
            "cooldown": timing.cooldown,
            "ticks": timing.ticks,
            "on_update_check": timing.on_update,
            "enabled": definition.enabled,
            "ignore_errors": definition.ignore_errors,
            "repeats": definition.repeats,
        },
        about=trigger.expression.about or "",
        fired=trigger.fired,
        last_fired=trigger.last_fired,
        stopped=_stopped(trigger),
        stopped_for=tuple(sorted(trigger.stopped_for)),
        true_for=tuple(
            sorted(
                trigger.name if subject is None else subject
                for subject, standing in trigger.standings.items()
                if standing.since is not None
            )
        ),
    )


def _stopped(trigger: Trigger) -> str:
    if trigger.stopped or not trigger.stopped_for:
        return trigger.stopped
    names = sorted(trigger.stopped_for)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"Only for {', '.join(names[:SHOWN])}{more}: {trigger.stopped_for[names[0]]}"
