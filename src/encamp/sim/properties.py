"""What simulated hosts tell of themselves, and what they can be told to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from encamp.model.command import CommandDefinition, Parameter
from encamp.model.machine import State
from encamp.model.property import PropertyDefinition, Value, ValueKind
from encamp.sim.host import SimulatedHost

REMOVE = "machine.remove"

COMMANDS = (
    CommandDefinition(name="request.run", internal=True),
    CommandDefinition(
        name=REMOVE,
        parameters=(Parameter("machine"), Parameter("idle", ValueKind.BOOL, required=False)),
    ),
)
"""What is carried out; whatever else real hosts offer is only counted."""


def _memory_free(host: SimulatedHost) -> int:
    return host.kind.memory - sum(machine.size.memory for machine in host.machines.values())


def _load(host: SimulatedHost) -> float:
    machines = host.machines.values()
    busy = [one for one in machines if one.state is State.RUNNING and not one.idle]
    return float(sum(machine.size.cpus for machine in busy))


def _machines_running(host: SimulatedHost) -> int:
    return sum(machine.state is State.RUNNING for machine in host.machines.values())


MOVING: dict[str, Callable[[SimulatedHost], Value]] = {
    "memory_free": _memory_free,
    "load1": _load,
    "machines_running": _machines_running,
}
"""What changes with the machines on a host. It is told only where somebody wants to know it, and
when it changes, where real hosts look on ticks. `load1` is the processors of machines at work."""


def _property(name: str, kind: ValueKind) -> PropertyDefinition:
    return PropertyDefinition(name=name, command="simulated", return_type=kind)


PROPERTIES = (
    *(_property(name, ValueKind.INT) for name in ("cpus", "memory_total")),
    *(_property(name, ValueKind.INT) for name in ("disk_total", "disk_free")),
    _property("images", ValueKind.LIST),
    _property("memory_free", ValueKind.INT),
    _property("load1", ValueKind.FLOAT),
    _property("machines_running", ValueKind.INT),
)


def wanted(expressions: Iterable[str]) -> tuple[str, ...]:
    """The moving ones that these speak of."""
    words = {word for text in set(expressions) for word in re.findall(r"\w+", text)}
    return tuple(name for name in MOVING if name in words)
