"""For whom a trigger that feeds itself is stopped: for as few as will do.

One host, whose machine flaps or who means harm, must not keep a trigger from doing its work for all
the others.
"""

from __future__ import annotations

from encamp.core.triggers.causes import Firing, host_of
from encamp.core.triggers.trigger import Trigger
from encamp.core.world import World

MOST_ON_A_HOST = 10
"""Subjects on one host for which a trigger is stopped one by one; after that, it is for all."""


def why_stopped(trigger: Trigger, subject: str | None, world: World) -> str:
    """Why it does not fire for a subject; empty: it does."""
    if trigger.stopped or not trigger.stopped_for or subject is None:
        return trigger.stopped
    found = trigger.stopped_for.get(subject)
    return found or trigger.stopped_for.get(_host(trigger, subject, world), "")


def stop(trigger: Trigger, subject: str | None, firing: Firing, world: World) -> str:
    """It fires no more: for the subject; for its host, if it was another subject each time; at all,
    if it is about nothing. Returns why."""
    why = (
        f"It fired {trigger.definition.repeats} times in a row on its own effect:"
        f" {firing.own.words()}. It fires again after the triggers are reloaded; 'cooldown' or"
        " 'every' would say how often it may."
    )
    if subject is None:
        trigger.stopped = why
        trigger.standings.clear()
        return why
    host = _host(trigger, subject, world)
    there = {key for key in trigger.stopped_for if _host(trigger, key, world) == host}
    if firing.root != subject or len(there) >= MOST_ON_A_HOST:
        for key in there:
            del trigger.stopped_for[key]
        trigger.stopped_for[host] = why
    else:
        trigger.stopped_for[subject] = why
    for known in [known for known in trigger.standings if why_stopped(trigger, known, world)]:
        del trigger.standings[known]
    return why


def release(trigger: Trigger) -> bool:
    """Let it begin anew. Was it stopped?"""
    was = bool(trigger.stopped or trigger.stopped_for)
    trigger.stopped, trigger.stopped_for = "", {}
    return was


def _host(trigger: Trigger, subject: str, world: World) -> str:
    return host_of(trigger.expression.about or "", subject, world)
