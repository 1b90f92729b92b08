"""Does a trigger fire on its own effect, without end?

When a trigger has told a host to do something, what changes on that host until shortly after the
command is over may be its effect. If such a change makes a trigger fire, that firing follows from
the former, and from all that one followed from: chains like this also go through several triggers,
a → b → a. What counts is how often a trigger has fired *for the same subject* in one chain; twenty
machines that fail one after the other are twenty reasons, not one. What a command has brought into
being (the machine that was started, the command itself) counts as the subject it was done for:
otherwise one that starts a machine for every machine would never be found out.

Which commands there are is seen in their records, so that one that could not be issued, or was left
out after another had failed, has no effect.

Firing because of a tick, or because `every` is over, follows from nothing, and neither does any
firing of a trigger with a `cooldown`: whoever wrote it has said how often it may fire.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from encamp.core.world import Change, World
from encamp.model.command import OVER

EFFECT_LASTS = 90.0
"""Seconds after a command is issued, and again after its end, in which its effect may be seen:
properties are read on ticks, most of them every minute."""

ANSWERS_LAST = 30.0
"""Seconds in which hosts answer what they are asked."""

LONGEST_COMMAND = 3600.0
"""Seconds after which a command is taken for over if nobody says so."""

SHOWN = 6
"""Links of a chain that are told."""

MOST_EFFECTS = 50
"""Firings whose effects on one host are kept; there may be more than can matter."""

MOST_PASSED = 16
"""What a firing takes over from those that it follows from."""

IS_OVER = frozenset(state.value for state in OVER)
ISSUER = "trigger:"
START = "machine.start"

EVERYWHERE = ""
"""Stands for all hosts."""

Identity = tuple[str, str | None]
"""A trigger and a subject."""


class Trace(NamedTuple):
    """How a trigger and a subject have occurred in a chain."""

    times: int
    path: tuple[str, ...]
    """The last triggers of the chain, in order."""

    def via(self, trigger: str, *, again: bool = False) -> Trace:
        return Trace(self.times + again, (*self.path, trigger)[-SHOWN - 1 :])

    def words(self) -> str:
        more = "... → " if len(self.path) > SHOWN else ""
        return more + " → ".join(self.path[-SHOWN:])


class Firing(msgspec.Struct, eq=False):
    """One firing, and the chain that it is the last of."""

    trigger: str
    root: str | None
    """The subject as which it counts."""
    own: Trace
    passed: dict[Identity, Trace]
    """The chain before it; many firings may have the same."""

    def trace(self, identity: Identity) -> Trace | None:
        if identity == (self.trigger, self.root):
            return self.own
        found = self.passed.get(identity)
        return None if found is None else found.via(self.trigger)


class Effect(msgspec.Struct, eq=False):
    """What a firing may lead to on one host."""

    firing: Firing
    until: float
    """Changes after this are no effect of it."""
    awaited: list[str]
    """Names of commands that have not been issued, as far as is known."""
    births: int
    """Machines that may appear."""
    running: set[str] = msgspec.field(default_factory=set)
    """Commands that are not over."""


class Reasons:
    """What the changes of one step may be the effects of."""

    def __init__(self, firings: Iterable[Firing] = ()) -> None:
        self.firings = dict.fromkeys(firings)
        """The oldest first."""

    def trace(self, identity: Identity) -> Trace | None:
        found = self._found.get(identity)
        return None if found is None else found[0].trace(identity)

    @cached_property
    def passed(self) -> dict[Identity, Trace]:
        """What is passed on: if it is much, what has occurred most."""
        found = list(self._found.items())
        if len(found) > MOST_PASSED:
            found = sorted(found, key=lambda item: item[1][1])[-MOST_PASSED:]
        return {identity: _known(firing.trace(identity)) for identity, (firing, _) in found}

    @cached_property
    def _found(self) -> dict[Identity, tuple[Firing, int]]:
        """Where each trigger and subject has occurred most often, and how often."""
        found: dict[Identity, tuple[Firing, int]] = {}
        known = set()
        for firing in self.firings:
            if firing.passed and (id(firing.passed), firing.trigger) not in known:
                known.add((id(firing.passed), firing.trigger))
                for identity, trace in firing.passed.items():
                    if identity not in found or found[identity][1] <= trace.times:
                        found[identity] = firing, trace.times
            own = (firing.trigger, firing.root)
            if own not in found or found[own][1] <= firing.own.times:
                found[own] = firing, firing.own.times
        return found


def _known(trace: Trace | None) -> Trace:
    assert trace is not None
    return trace


class Cause(NamedTuple):
    """What a firing follows from."""

    root: str | None
    """The subject as which it counts."""
    trace: Trace | None
    """How the same trigger has occurred for it before."""
    passed: dict[Identity, Trace]


def follow(trigger: str, subject: str | None, cause: Cause | None) -> Firing:
    """A firing that follows from others, or from nothing."""
    if cause is None:
        return Firing(trigger, subject, Trace(1, (trigger,)), {})
    former = cause.trace if cause.trace is not None else Trace(0, ())
    return Firing(trigger, cause.root, former.via(trigger, again=True), cause.passed)


class Causes:
    def __init__(self) -> None:
        self._effects: dict[str, dict[Identity, Effect]] = {}
        """For each host, those of the last firing of each trigger for each subject."""
        self._commands: dict[str, Effect] = {}
        """For each command that is not over, what it is part of."""
        self._heirs: dict[str, Effect] = {}
        """For each subject that an effect has brought into being, that effect."""
        self._sweep = 0.0

    def acted(self, firing: Firing, commands: Mapping[str, Sequence[str]], now: float) -> None:
        """A firing has hosts do something: commands of these names; none if it only asks."""
        self._forget(now)
        identity = (firing.trigger, firing.root)
        for host, names in commands.items():
            until = now + (EFFECT_LASTS if names else ANSWERS_LAST)
            effects = self._effects.setdefault(host, {})
            effects.pop(identity, None)
            effects[identity] = Effect(firing, until, list(names), list(names).count(START))
            if len(effects) > MOST_EFFECTS:
                # The oldest of those that look least like a circle.
                del effects[min(effects, key=lambda other: effects[other].firing.own.times)]

    def of_changes(self, changes: Sequence[Change], world: World, now: float) -> tuple[Firing, ...]:
        """What these changes may be the effects of."""
        if not self._effects:
            return ()
        for change in changes:
            if change.kind == "command":
                self._take_command(change, world, now)
            elif change.kind == "machine" and not change.fact and change.new:
                self._take_birth(change, world, now)
        hosts = {host_of(change.kind, change.key, world) for change in changes}
        found = {
            effect.firing: None
            for host in (*hosts, EVERYWHERE)
            for effect in self._effects.get(host, {}).values()
            if now <= effect.until
        }
        return tuple(found)

    def _take_command(self, change: Change, world: World, now: float) -> None:
        if not change.fact and change.new:
            self._take_issue(change.key, world, now)
        elif change.fact == "state" and change.new in IS_OVER:
            effect = self._commands.pop(change.key, None)
            if effect is not None:
                effect.running.discard(change.key)
                if not effect.running:
                    effect.until = now + EFFECT_LASTS

    def _take_issue(self, key: str, world: World, now: float) -> None:
        """There is a command: if a trigger has sent it, what it does is that firing's effect."""
        command = world.things["command"].get(key)
        issuer = command.fact("issuer") if command is not None else None
        if command is None or not isinstance(issuer, str) or not issuer.startswith(ISSUER):
            return
        trigger, name = issuer.removeprefix(ISSUER), command.fact("name")
        for effect in self._effects.get(host_of("command", key, world), {}).values():
            if effect.firing.trigger == trigger and now <= effect.until and name in effect.awaited:
                effect.awaited.remove(str(name))
                effect.running.add(key)
                effect.until = now + LONGEST_COMMAND
                self._commands[key] = self._heirs[key] = effect
                return

    def _take_birth(self, change: Change, world: World, now: float) -> None:
        """There is a machine: if one was to be started there, it is that one."""
        for effect in self._effects.get(host_of(change.kind, change.key, world), {}).values():
            if effect.births and now <= effect.until:
                effect.births -= 1
                self._heirs[change.key] = effect
                return

    def cause(self, trigger: str, subject: str | None, reasons: Reasons) -> Cause | None:
        """What a firing would follow from, if it were because of these changes."""
        if not reasons.firings:
            return None
        root, trace = subject, reasons.trace((trigger, subject))
        effect = self._heirs.get(subject) if subject is not None else None
        if effect is not None and effect.firing in reasons.firings:
            # What this very chain has done: there may be others at work on the same host.
            before = effect.firing.trace((trigger, effect.firing.root))
            if trace is None or (before is not None and before.times >= trace.times):
                root, trace = effect.firing.root, before
        return Cause(root, trace, reasons.passed)

    def reset(self, triggers: Collection[str]) -> None:
        """Begin to count anew for these."""
        for effects in self._effects.values():
            for identity, effect in list(effects.items()):
                if identity[0] in triggers or any(
                    name in triggers for name, _ in effect.firing.passed
                ):
                    del effects[identity]

    def clear(self) -> None:
        self._effects.clear()
        self._commands.clear()
        self._heirs.clear()
        self._sweep = 0.0

    def _forget(self, now: float) -> None:
        """What has no effect any more, now and then."""
        if now < self._sweep:
            return
        self._sweep = now + EFFECT_LASTS
        for host, effects in list(self._effects.items()):
            for identity in [key for key, effect in effects.items() if effect.until < now]:
                del effects[identity]
            if not effects:
                del self._effects[host]
        for known in (self._commands, self._heirs):
            for key in [key for key, effect in known.items() if effect.until < now]:
                del known[key]


def host_of(kind: str, key: str, world: World) -> str:
    """The host on which a thing is."""
    if kind == "host":
        return key
    thing = world.things.get(kind, {}).get(key)
    host = thing.fact("host") if thing is not None else None
    # Of what is gone its key tells: keys of machines and jobs begin with their hosts.
    return host if isinstance(host, str) else key.partition("/")[0]


def all_of(*several: Iterable[Firing]) -> tuple[Firing, ...]:
    return tuple({firing: None for firings in several for firing in firings})
