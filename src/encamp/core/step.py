"""One step of a site: something happens, the picture changes, triggers are looked at.

`Core.step(happening, now)` is all there is to deciding. The manager's daemon calls it with what
agents say, a simulation with what it makes up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, tzinfo
from typing import Any

import msgspec

from encamp.core.actions import Action, PlacementAction
from encamp.core.happenings import (
    ClaimAnswered,
    CommandMoved,
    EndWanted,
    EnvironmentsRead,
    Forgotten,
    Gone,
    Happening,
    Joined,
    PartMoved,
    PolicyRead,
    Remembered,
    Reported,
    StoodStill,
    Submitted,
    TimePassed,
)
from encamp.core.picture import HostState, Picture
from encamp.core.placement.placement import Placement
from encamp.core.triggers.engine import Engine
from encamp.core.triggers.owning import owner_in
from encamp.model.command import IN_WORDS, OVER, CommandDefinition
from encamp.model.event import Event, EventKind
from encamp.model.host import Host, Presence
from encamp.model.machine import Machine
from encamp.model.policy import Policy
from encamp.model.property import PropertyDefinition, Reading
from encamp.model.request import Request
from encamp.model.trigger import TriggerDefinition

CLOCK_TOLERANCE = 5.0
"""Seconds by which a host's clock may be off before it is worth telling."""


class Decision(msgspec.Struct):
    """What is to be done, and what is worth telling."""

    actions: list[Action]
    events: list[Event]
    placement: list[PlacementAction] = []
    """What is to be done about requests, in this order."""


class Core:
    def __init__(
        self,
        definitions: Iterable[PropertyDefinition] = (),
        commands: Mapping[str, CommandDefinition] | None = None,
        *,
        settled: bool = True,
        zone: tzinfo = UTC,
    ) -> None:
        """`zone`: whose hours and days expressions speak of."""
        self.picture = Picture(definitions)
        self.placement = Placement(self.picture, zone)
        self.engine = Engine(self.picture.world, zone, self._owner_of)
        self._commands = dict(commands or {})
        """What hosts offer as far as is known without any."""
        self._remembered: dict[str, CommandDefinition] = {}
        self.settled = settled
        """Whether the picture is whole. Until then no trigger is looked at, and nothing is placed:
        to a manager that has just started, every host seems to be missing."""
        self._events: list[Event] = []

    def load(self, triggers: Sequence[TriggerDefinition], now: float) -> None:
        """Watch these triggers instead. If there is a mistake in them, those before stay."""
        self.engine.load(triggers, self.commands(), now)

    def know_commands(self, commands: Iterable[CommandDefinition]) -> None:
        """Hosts that are not in the picture now were seen to offer these."""
        self._remembered |= {definition.name: definition for definition in commands}

    def commands(self) -> dict[str, CommandDefinition]:
        """What hosts can be told to do."""
        # What is shipped and what the site's files say is not for a host to say otherwise.
        return {**self._remembered, **self.picture.commands_offered(), **self._commands}

    def step(self, happening: Happening, now: float) -> Decision:
        self._events = []
        _TAKEN[type(happening)](self, happening, now)
        self.placement.take(happening, now)
        self.picture.forget_commands(now)
        actions: list[Action] = []
        if self.settled:
            changes = self.picture.world.take_changes()
            self.placement.decide(changes, now)
            own = self.picture.world.take_changes()
            self.placement.notice(own)
            actions = self.engine.step(changes + own, now)
        self._events += self.placement.take_events()
        return Decision(actions, self._events, self.placement.take_actions())

    def next_look(self) -> float | None:
        """When a step is due though nothing happens; 0: at once."""
        if not self.settled:
            return None
        times = (self.engine.next_look(), self.placement.next_look())
        return min((time for time in times if time is not None), default=None)

    def check_request(self, request: Request) -> None:
        """Raises EncampError if it makes no sense, or no host known could ever take it."""
        self.placement.check(request)

    def check_policy(self, policy: Policy) -> None:
        """Raises EncampError if one of its ranks makes no sense with what is known now."""
        self.placement.check_ranks(policy)

    # ── what can happen ──────────────────────────────────────────────────────────────────────────

    def _joined(self, joined: Joined, now: float) -> None:
        former = self.picture.hosts.get(joined.name)
        again = former is not None and _is_same(former, joined)
        self.picture.learn(joined.properties, joined.groups, joined.name)
        state = self.picture.put_host(
            Host(
                name=joined.name,
                groups=joined.groups,
                presence=Presence.JOINED,
                since=former.record.since if former is not None and again else now,
                version=joined.version,
                instance=joined.instance,
                clock_offset=joined.clock_offset,
                properties=joined.properties,
                commands=joined.commands,
            )
        )
        if not again:
            self._tell(EventKind.HOST_JOINED, f"Host {joined.name} has joined.", joined.name, now)
        if abs(joined.clock_offset) > CLOCK_TOLERANCE:
            way = "ahead of" if joined.clock_offset > 0 else "behind"
            self._tell(
                EventKind.HOST_TROUBLE,
                f"The clock of host {joined.name} is {abs(joined.clock_offset):.0f} seconds {way}"
                " the manager's.",
                joined.name,
                now,
            )
        for trouble in joined.troubles:
            sentence = f"Host {joined.name}: {trouble}"
            self._tell(EventKind.HOST_TROUBLE, sentence, joined.name, now)
        self._readings(state, joined.readings, now, all=True)
        self._machines(state, joined.machines, now)

    def _gone(self, gone: Gone, now: float) -> None:
        state = self.picture.hosts.get(gone.name)
        if state is None or state.record.presence is not Presence.JOINED:
            return
        self.picture.put_host(
            msgspec.structs.replace(
                state.record, presence=gone.presence, reason=gone.reason, since=now
            )
        )
        self.picture.lose_sight(state, f"host {gone.name} {_WENT[gone.presence]}")
        self._tell(
            _GONE[gone.presence],
            f"Host {gone.name} {_WENT[gone.presence]}: {gone.reason}.",
            gone.name,
            now,
        )

    def _forgotten(self, forgotten: Forgotten, now: float) -> None:
        self.picture.drop_host(forgotten.name)

    def _reported(self, reported: Reported, now: float) -> None:
        state = self.picture.hosts[reported.name]
        self._readings(state, reported.readings, now, all=False)
        if reported.machines is not None:
            self._machines(state, reported.machines, now)

    def _command_moved(self, moved: CommandMoved, now: float) -> None:
        record = moved.record
        self.picture.put_command(record, now)
        new = record.changed == record.issued
        where = f"{record.name} on {record.host}"
        reason = f": {record.reason}" if record.reason else "."
        self._tell(
            EventKind.COMMAND_ISSUED if new else EventKind.COMMAND_CHANGED,
            f"{record.issuer} issued {where}."
            if new
            else f"{where} {IN_WORDS[record.state]}{reason}",
            record.host,
            now,
            record.id,
            owner=record.issuer,
            over=record.state in OVER,
        )

    def _part_moved(self, moved: PartMoved, now: float) -> None:
        """Now it is known whose a machine is that was seen before."""
        state, owner = self.picture.hosts.get(moved.host), self.placement.owner_of(moved.request)
        seen = state.seen.get(moved.machine) if state is not None else None
        if state is not None and seen is not None and owner:
            state.seen[moved.machine] = msgspec.structs.replace(seen, owner=owner)

    def _environments_read(self, read: EnvironmentsRead, now: float) -> None:
        world = self.picture.world
        for name in world.things["environment"].keys() - read.environments.keys():
            world.drop("environment", name)
        for name, facts in read.environments.items():
            world.put("environment", name, facts)

    def _not_in_the_picture(self, happening: Happening, now: float) -> None:
        pass

    # ── what it does to the picture ──────────────────────────────────────────────────────────────

    def _readings(
        self, state: HostState, readings: dict[str, Reading], now: float, *, all: bool
    ) -> None:
        for name, reading in readings.items():
            former = state.readings.get(name)
            failed = former is not None and bool(former.error)
            if bool(reading.error) is not failed:
                host = state.record.name
                if reading.error:
                    kind = EventKind.PROPERTY_FAILED
                    sentence = f"{name} of host {host} cannot be read: {reading.error}"
                else:
                    kind = EventKind.PROPERTY_RECOVERED
                    sentence = f"{name} of host {host} can be read again."
                self._tell(kind, sentence, host, now, name)
        self.picture.put_readings(state, readings, all=all)

    def _machines(self, state: HostState, machines: tuple[Machine, ...], now: float) -> None:
        host = state.record.name
        former = state.seen
        owners = self._owners(state)
        present = set()
        for machine in machines:
            present.add(machine.id)
            before = former.get(machine.id)
            if before is None:
                kind, what = EventKind.MACHINE_APPEARED, f"is {machine.state.value}"
            elif before.state is not machine.state:
                kind, what = EventKind.MACHINE_CHANGED, f"is {machine.state.value}"
            else:
                continue
            reason = f": {machine.reason}" if machine.reason else "."
            sentence = f"Machine {machine.name} of {machine.environment} on {host} {what}{reason}"
            self._tell(kind, sentence, host, now, machine.id, **_owned(owners, machine.id))
        for machine_id in former.keys() - present:
            sentence = f"Machine {former[machine_id].name} on {host} is gone."
            gone = _owned(owners, machine_id)
            self._tell(EventKind.MACHINE_GONE, sentence, host, now, machine_id, **gone)
        self.picture.put_machines(state, machines, owners)

    def _owners(self, state: HostState) -> dict[str, str]:
        """Whose the machines on a host are, and those that were there; as far as it is known."""
        told = {machine: seen.owner for machine, seen in state.seen.items() if seen.owner}
        return told | self.placement.owners_of_machines(state.record.name)

    def _owner_of(self, kind: str, key: str) -> str | None:
        """Whose a thing of a kind is."""
        if kind not in ("machine", "job"):
            return owner_in(self.picture.world, kind, key)
        host, _, machine = key.partition("/")
        state = self.picture.hosts.get(host)
        return None if state is None else self._owners(state).get(machine)

    def _tell(
        self,
        kind: EventKind,
        sentence: str,
        host: str,
        now: float,
        subject: str = "",
        **facts: Any,
    ) -> None:
        self._events.append(
            Event(at=now, kind=kind, sentence=sentence, host=host, subject=subject, facts=facts)
        )


def _owned(owners: Mapping[str, str], machine: str) -> dict[str, str]:
    return {"owner": owners[machine]} if machine in owners else {}


def _is_same(state: HostState, joined: Joined) -> bool:
    """Does an agent that was there introduce itself again?"""
    return state.record.presence is Presence.JOINED and state.record.instance == joined.instance


_GONE = {Presence.LEFT: EventKind.HOST_LEFT, Presence.LOST: EventKind.HOST_LOST}
_WENT = {Presence.LEFT: "has left", Presence.LOST: "is lost"}

_TAKEN: dict[type[Happening], Callable[[Core, Any, float], None]] = {
    Joined: Core._joined,
    Gone: Core._gone,
    Forgotten: Core._forgotten,
    Reported: Core._reported,
    CommandMoved: Core._command_moved,
    EnvironmentsRead: Core._environments_read,
    TimePassed: Core._not_in_the_picture,
    StoodStill: Core._not_in_the_picture,
    PolicyRead: Core._not_in_the_picture,
    Submitted: Core._not_in_the_picture,
    Remembered: Core._not_in_the_picture,
    EndWanted: Core._not_in_the_picture,
    ClaimAnswered: Core._not_in_the_picture,
    PartMoved: Core._part_moved,
}
