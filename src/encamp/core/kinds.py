"""The kinds of things that a site is made of, as expressions know them."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable

from encamp.core.schema import OF_VALUE, Fact, Kind, Schema, Type
from encamp.core.world import MISSING, Known
from encamp.model.command import CommandRecord, CommandState
from encamp.model.host import Presence
from encamp.model.machine import Machine, State
from encamp.model.node import NodeState
from encamp.model.property import PropertyDefinition
from encamp.model.quantity import BYTES
from encamp.model.request import Cause, RequestRecord, RequestState


def _one_of(words: type[enum.Enum], help: str) -> Fact:
    return Fact(Type.STR, help, words=tuple(word.value for word in words))


HOST_FACTS = {
    "name": Fact(Type.STR, "the host's name"),
    "presence": _one_of(Presence, "is its agent there?"),
    "reason": Fact(Type.STR, "why it is lost, or has left"),
    "since": Fact(Type.FLOAT, "when it came into this presence, in seconds of 1970"),
    "groups": Fact(Type.LIST, "the groups of hosts that it is in"),
    "version": Fact(Type.STR, "its agent's version"),
    "clock_offset": Fact(Type.FLOAT, "seconds that its clock is ahead of the manager's"),
    "room_cpus": Fact(Type.FLOAT, "processors that are left for machines"),
    "room_memory": Fact(Type.INT, "bytes of memory that are left for machines", unit=BYTES),
    "room_disk": Fact(Type.INT, "bytes of disk that are left for machines", unit=BYTES),
    "machines_here": Fact(Type.INT, "machines that are there or promised"),
}
"""What is known of every host, beside its properties. No property may be called like one."""

MACHINE = Kind(
    "machine",
    "machines",
    {
        "id": Fact(Type.STR, "the machine's id"),
        "name": Fact(Type.STR, "its name"),
        "owner": Fact(Type.INT, "the number of the user it belongs to"),
        "host": Fact(Type.STR, "the host it is on", refers="host"),
        "environment": Fact(Type.STR, "the environment it was made of", refers="environment"),
        "state": _one_of(State, "whether it runs, stands still or has ended"),
        "reason": Fact(Type.STR, "why it is in that state"),
        "created": Fact(Type.FLOAT, "when it was made"),
        "changed": Fact(Type.FLOAT, "when it came into this state"),
        "cpus": Fact(Type.INT, "processors"),
        "memory": Fact(Type.INT, "bytes of memory", unit=BYTES),
        "idle": Fact(Type.BOOL, "whether it stands ready for the next job of its owner's"),
        "node": Fact(
            Type.STR,
            "how it stands to a batch system whose worker node it is; empty if it is none",
            words=tuple(state.value for state in NodeState),
        ),
        "node_idle": Fact(
            Type.BOOL, "whether it is a worker node that has no job now, and would get one"
        ),
    },
    key="id",
)

JOB = Kind(
    "job",
    "jobs",
    {
        "id": Fact(Type.STR, "the id of the machine it runs in"),
        "host": Fact(Type.STR, "the host it runs on", refers="host"),
        "environment": Fact(Type.STR, "the environment it asked for", refers="environment"),
        "owner": Fact(Type.INT, "the number of the user it belongs to"),
        "command": Fact(Type.STR, "its command line"),
        "state": _one_of(State, "the state of its machine"),
        "created": Fact(Type.FLOAT, "when its machine was made"),
    },
    key="id",
)

COMMAND = Kind(
    "command",
    "commands",
    {
        "id": Fact(Type.STR, "the command's id"),
        "name": Fact(Type.STR, "what was to be done"),
        "host": Fact(Type.STR, "the host it was sent to", refers="host"),
        "issuer": Fact(Type.STR, "who issued it"),
        "state": _one_of(CommandState, "how far it has come"),
        "reason": Fact(Type.STR, "why it is in that state"),
        "issued": Fact(Type.FLOAT, "when"),
        "changed": Fact(Type.FLOAT, "when it came into this state"),
        "exit_code": Fact(Type.INT, "of the program it ran"),
    },
    key="id",
)

ENVIRONMENT = Kind(
    "environment",
    "environments",
    {
        "name": Fact(Type.STR, "the environment's name"),
        "cpus": Fact(Type.INT, "processors that a machine of it gets"),
        "memory": Fact(Type.INT, "bytes of memory that a machine of it gets", unit=BYTES),
        "classes": Fact(Type.LIST, "the classes that it is in"),
        "reuse": Fact(Type.BOOL, "whether its machines may have one job after the other"),
        "image": Fact(Type.STR, "the name of its image, if it has one"),
        "enrols": Fact(
            Type.STR, "the batch system whose worker nodes its machines are; empty: of none"
        ),
        "waiting": Fact(Type.INT, "requests for it that wait for a place"),
        "waiting_since": Fact(Type.FLOAT, "when the oldest of them was submitted; if one waits"),
        "coming": Fact(Type.INT, "machines of it that are wanted for themselves, and not up yet"),
        "running": Fact(Type.INT, "machines of it that run, on all hosts"),
        "idle": Fact(Type.INT, "those of them that no request uses"),
        "batch_waiting": Fact(
            Type.INT, "jobs for it in the batch system's queue, if a host looks at that"
        ),
        "batch_waiting_since": Fact(
            Type.FLOAT, "when the oldest of those was submitted; if one waits"
        ),
        "batch_waiting_owner": Fact(Type.STR, "whose the oldest of those is; if one waits"),
    },
)

REQUEST = Kind(
    "request",
    "requests",
    {
        "id": Fact(Type.STR, "the request's id"),
        "owner": Fact(Type.STR, "the name of the user it belongs to"),
        "environment": Fact(Type.STR, "the environment it asks for", refers="environment"),
        "state": _one_of(RequestState, "how far it has come"),
        "cause": Fact(
            Type.STR,
            "what it waits for, in a word; empty if for nothing",
            words=tuple(cause.value for cause in Cause if cause.value),
        ),
        "submitted": Fact(Type.FLOAT, "when"),
        "changed": Fact(Type.FLOAT, "when it came into this state"),
        "priority": Fact(Type.INT, "among requests of its owner"),
        "count": Fact(Type.INT, "machines that it asks for"),
        "runs_job": Fact(Type.BOOL, "whether it runs a job, or wants machines for themselves"),
        "host": Fact(Type.STR, "the host of its first machine, once it has one", refers="host"),
    },
    key="id",
)


def schema_of(definitions: Iterable[PropertyDefinition], groups: Collection[str] = ()) -> Schema:
    """All kinds; hosts have these properties. One that hosts define differently is of any type."""
    facts = dict(HOST_FACTS)
    for definition in definitions:
        if definition.name in HOST_FACTS:
            continue
        kind = OF_VALUE[definition.return_type]
        former = facts.get(definition.name)
        if former is not None and former.type is not kind:
            kind = Type.ANY
        facts[definition.name] = Fact(kind, definition.help, unit=definition.unit)
    host = Kind("host", "hosts", facts)
    kinds = {kind.name: kind for kind in (host, MACHINE, JOB, COMMAND, ENVIRONMENT, REQUEST)}
    return Schema(kinds, frozenset(groups))


def machine_key(host: str, machine_id: str) -> str:
    """No agent can claim a machine of another's: they are told apart by their hosts too."""
    return f"{host}/{machine_id}"


def machine_facts(host: str, machine: Machine) -> dict[str, Known]:
    return {
        "id": machine.id,
        "name": machine.name,
        "owner": machine.owner,
        "host": host,
        "environment": machine.environment,
        "state": machine.state.value,
        "reason": machine.reason,
        "created": machine.created,
        "changed": machine.changed,
        "cpus": machine.size.cpus,
        "memory": machine.size.memory,
        "idle": machine.idle,
        "node": machine.node.state.value if machine.node else "",
        "node_idle": bool(machine.node and machine.node.open and machine.node.quiet is not None),
    }


def job_facts(host: str, machine: Machine) -> dict[str, Known]:
    return {
        "id": machine.id,
        "host": host,
        "environment": machine.environment,
        "owner": machine.owner,
        "command": " ".join(machine.command),
        "state": machine.state.value,
        "created": machine.created,
    }


def command_facts(record: CommandRecord) -> dict[str, Known]:
    facts: dict[str, Known] = {
        "id": record.id,
        "name": record.name,
        "host": record.host,
        "issuer": record.issuer,
        "state": record.state.value,
        "reason": record.reason,
        "issued": record.issued,
        "changed": record.changed,
    }
    if record.exit_code is not None:
        facts["exit_code"] = record.exit_code
    return facts


def request_facts(record: RequestRecord) -> dict[str, Known]:
    request = record.request
    return {
        "id": request.id,
        "owner": request.owner,
        "environment": request.environment,
        "state": record.state.value,
        "cause": record.reason.cause.value,
        "submitted": request.submitted,
        "changed": record.changed,
        "priority": request.priority,
        "count": request.count,
        "runs_job": request.job is not None,
        "host": record.parts[0].host if record.parts else MISSING,
    }
