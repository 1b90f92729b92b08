"""The manager's picture of its site: made of what agents say, and of nothing else.

It is kept twice: as records, for people, and as a world of facts, for expressions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from encamp.core.batch_queue import PROPERTY as BATCH_WAITING
from encamp.core.batch_queue import BatchQueue
from encamp.core.kinds import (
    HOST_FACTS,
    command_facts,
    job_facts,
    machine_facts,
    machine_key,
    schema_of,
)
from encamp.core.world import Known, Unknown, World
from encamp.model.command import OVER, CommandDefinition, CommandRecord
from encamp.model.host import Host, Presence
from encamp.model.machine import Machine, State
from encamp.model.property import PropertyDefinition, Reading, ValueKind

MOST_BROUGHT = 200
"""Properties and groups of its own that one host can make known."""

RECENT = 600.0
"""Seconds for which expressions see a command that is over."""


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """What was told of a machine."""

    name: str
    state: State
    owner: str = ""
    """Whose request it was made for, if that is known."""


class HostState:
    """One host; what changes often is changed in place."""

    __slots__ = ("_outside", "machines", "readings", "record", "seen")

    def __init__(self, record: Host) -> None:
        self.record = record
        """Without readings and machines."""
        self.readings: dict[str, Reading] = {}
        self.machines: dict[str, Machine] = {}
        self.seen: dict[str, Seen] = {}
        """What was last told of its machines; a manager that starts remembers it."""
        self._outside: tuple[dict[str, Machine], dict[str, Machine]] = ({}, {})

    def outside(self) -> dict[str, Machine]:
        """Its machines, as everybody may see them. Worked out once for all who ask."""
        told, outside = self._outside
        if told is not self.machines:
            outside = {name: machine.outside() for name, machine in self.machines.items()}
            self._outside = self.machines, outside
        return outside

    def whole(self) -> Host:
        return msgspec.structs.replace(
            self.record, readings=dict(self.readings), machines=tuple(self.machines.values())
        )


class Picture:
    def __init__(self, definitions: Iterable[PropertyDefinition] = ()) -> None:
        self.hosts: dict[str, HostState] = {}
        self.definitions: dict[str, dict[ValueKind, PropertyDefinition]] = {}
        """What is known of each property, from all hosts that define it and the site's files."""
        self._brought: dict[str, set[str]] = {}
        """What nobody knew of before each host came."""
        self.groups: set[str] = set()
        self.seen_before: dict[str, dict[str, Seen]] = {}
        """The machines of hosts that have not joined since the manager started."""
        self.world = World(schema_of(()))
        self.batch_queue = BatchQueue(self.world)
        self._over: list[tuple[float, str]] = []
        """Commands that are over, in the order in which they came to be."""
        self.learn(definitions)

    def learn(
        self,
        definitions: Iterable[PropertyDefinition],
        groups: Iterable[str] = (),
        host: str = "",
    ) -> bool:
        """There are these properties and groups too; a host says so, or the site's files. Was any
        of them new? What one host can bring is bounded."""
        brought = self._brought.setdefault(host, set())
        room = MOST_BROUGHT if host else None
        new = False
        for definition in definitions:
            known = self.definitions.get(definition.name, {})
            if definition.return_type in known:
                continue
            if room is not None and len(brought) >= room:
                break
            brought.add(definition.name)
            known[definition.return_type] = definition
            self.definitions[definition.name] = known
            new = True
        for group in groups:
            if group in self.groups or (room is not None and len(brought) >= room):
                continue
            brought.add(f"@{group}")
            self.groups.add(group)
            new = True
        if new:
            flat = [one for several in self.definitions.values() for one in several.values()]
            self.world.schema = schema_of(flat, self.groups)
        return new

    def commands_offered(self) -> dict[str, CommandDefinition]:
        """What hosts can be told to do. Where they differ, as most of them say it."""
        votes: dict[str, list[CommandDefinition]] = {}
        for host in self.hosts.values():
            for definition in host.record.commands:
                votes.setdefault(definition.name, []).append(definition)
        return {name: _commonest(definitions) for name, definitions in votes.items()}

    # ── hosts ────────────────────────────────────────────────────────────────────────────────────

    def put_host(self, record: Host) -> HostState:
        state = self.hosts.get(record.name)
        if state is None:
            state = self.hosts[record.name] = HostState(record)
            state.seen = self.seen_before.pop(record.name, {})
        state.record = record
        self.world.put(
            "host",
            record.name,
            {
                "name": record.name,
                "presence": record.presence.value,
                "reason": record.reason,
                "since": record.since,
                "groups": list(record.groups),
                "version": record.version,
                "clock_offset": record.clock_offset,
            },
        )
        return state

    def put_readings(self, state: HostState, readings: dict[str, Reading], *, all: bool) -> None:
        """Take over what a host has read; `all`: it has nothing else."""
        if all:
            vanished = state.readings.keys() - readings.keys()
            self.world.forget("host", state.record.name, vanished)
            state.readings = {}
        state.readings.update(readings)
        self.world.put(
            "host",
            state.record.name,
            # No host speaks for itself of what the manager knows of every host.
            {name: known(reading) for name, reading in readings.items() if name not in HOST_FACTS},
        )
        if BATCH_WAITING in readings:
            self.batch_queue.told(state.record.name, known(readings[BATCH_WAITING]))
        elif all:
            self.batch_queue.gone(state.record.name)

    def lose_sight(self, state: HostState, reason: str) -> None:
        """Nobody is there to tell: expressions are not to take the last values for true."""
        gone = Unknown(reason)
        defined = [definition.name for definition in state.record.properties]
        names = [name for name in (*defined, *state.readings) if name not in HOST_FACTS]
        self.world.put("host", state.record.name, dict.fromkeys(names, gone))
        self.batch_queue.gone(state.record.name)

    def drop_host(self, name: str) -> None:
        state = self.hosts.pop(name, None)
        if state is not None:
            self.put_machines(state, ())
            self.world.drop("host", name)
            self.batch_queue.gone(name)

    def put_machines(
        self, state: HostState, machines: Iterable[Machine], owners: Mapping[str, str] | None = None
    ) -> None:
        """These are all the machines on a host. `owners`: whose they are, of those of which it is
        known, by their ids."""
        host = state.record.name
        machines = tuple(machines)
        present = {machine.id: machine for machine in machines}
        for machine_id in state.machines.keys() - present.keys():
            self.world.drop("machine", machine_key(host, machine_id))
            self.world.drop("job", machine_key(host, machine_id))
        for machine in present.values():
            key = machine_key(host, machine.id)
            self.world.put("machine", key, machine_facts(host, machine))
            if machine.command:
                self.world.put("job", key, job_facts(host, machine))
        state.machines = present
        owners = owners or {}
        state.seen = {
            machine.id: Seen(machine.name, machine.state, owners.get(machine.id, ""))
            for machine in machines
        }

    # ── commands ─────────────────────────────────────────────────────────────────────────────────

    def put_command(self, record: CommandRecord, now: float) -> None:
        self.world.put("command", record.id, command_facts(record))
        if record.state in OVER:
            self._over.append((now, record.id))

    def forget_commands(self, now: float) -> None:
        """Those that have been over for long enough."""
        for passed, (since, command_id) in enumerate(self._over):
            if now - since < RECENT:
                del self._over[:passed]
                return
            self.world.drop("command", command_id)
        self._over.clear()


def _commonest(definitions: list[CommandDefinition]) -> CommandDefinition:
    counts: dict[bytes, int] = {}
    for definition in definitions:
        written = msgspec.msgpack.encode(definition)
        counts[written] = counts.get(written, 0) + 1
    best = max(counts, key=lambda written: counts[written])
    return next(one for one in definitions if msgspec.msgpack.encode(one) == best)


def known(reading: Reading) -> Known:
    return Unknown(reading.error) if reading.error else reading.value


def joined(host: Host) -> bool:
    return host.presence is Presence.JOINED
