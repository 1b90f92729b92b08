"""The ledger of a site: what each host has, what is on it, and what is promised.

Machines count as their host reports them. A machine that was promised and is not reported yet
counts as long as its request says so; none is ever counted twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from encamp.core.placement.counted import Counted
from encamp.model.machine import Machine, State
from encamp.model.policy import Policy
from encamp.model.property import Reading
from encamp.model.size import Size

CARRIES_OUT = "request.run"
"""The command that a host must offer to have machines placed on it."""

ROOM_FACTS = ("room_cpus", "room_memory", "room_disk", "machines_here")
"""What expressions can know of it."""

UNBOUNDED = 1 << 62

PartKey = tuple[str, int]
"""A request and the number of one of its machines."""


class Promise:
    """Room that a machine of a request takes, from the choice of its host until it is over."""

    __slots__ = ("counted", "label", "machine", "size", "visible")

    def __init__(self, counted: Counted, size: Size, label: str) -> None:
        self.counted = counted
        self.size = size
        self.label = label
        self.machine = ""
        """Its id, once it is known."""
        self.visible = False
        """Its host reports it: it counts as any machine there."""


class Standing(NamedTuple):
    """A machine that is on a host, and whose it is."""

    machine: Machine
    counted: Counted


class HostRoom:
    """One host. Room is what is left of what it has."""

    __slots__ = (
        "carries_out",
        "cpus",
        "disk",
        "disk_free",
        "idle",
        "joined",
        "labels",
        "machines",
        "memory",
        "name",
        "owners",
        "promises",
        "proven",
        "standing",
        "told",
        "used_cpus",
        "used_disk",
        "used_disk_unseen",
        "used_memory",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.joined = False
        self.carries_out = False
        self.owners: frozenset[str] | None = None
        """The users it can make machines for; None: all."""
        self.cpus = 0.0
        self.memory = 0
        self.disk = UNBOUNDED
        """What there is for machines, used or not."""
        self.disk_free: int = UNBOUNDED
        self.told = False
        """Has it said what it has?"""
        self.used_cpus = 0
        self.used_memory = 0
        self.used_disk = 0
        self.used_disk_unseen = 0
        """Of machines that are only promised: nothing of it is written yet."""
        self.standing: dict[str, Standing] = {}
        """Machines that are there and take up room, by their ids."""
        self.idle: tuple[Machine, ...] = ()
        """Machines that are there and give way to others."""
        self.promises: dict[PartKey, Promise] = {}
        self.machines = 0
        """How many are there or promised."""
        self.labels: dict[tuple[str, str], int] = {}
        """How many machines of each owner and label are there."""
        self.proven: set[str] = set()
        """Environments of which a machine has come up there: their templates lie there."""

    @property
    def room_cpus(self) -> float:
        return self.cpus - self.used_cpus

    @property
    def room_memory(self) -> int:
        return self.memory - self.used_memory

    @property
    def room_disk(self) -> int:
        return min(self.disk - self.used_disk, self.disk_free - self.used_disk_unseen)

    def times(self, size: Size) -> int:
        """How many machines of a size there is room for."""
        return self._times(size, self.room_cpus, self.room_memory, self.room_disk)

    def times_if_empty(self, size: Size) -> int:
        return self._times(size, self.cpus, self.memory, min(self.disk, UNBOUNDED))

    @staticmethod
    def _times(size: Size, cpus: float, memory: int, disk: int) -> int:
        times = int(min(cpus // max(size.cpus, 1), memory // max(size.memory, 1)))
        if size.disk:
            times = min(times, disk // size.disk)
        return max(times, 0)

    # ── what is on it ────────────────────────────────────────────────────────────────────────────

    def measure(self, readings: Mapping[str, Reading], policy: Policy) -> None:
        """What it has, as it says."""
        cpus, memory = _number(readings, "cpus"), _number(readings, "memory_total")
        self.told = cpus is not None and memory is not None
        self.cpus = (cpus or 0) * policy.overcommit
        total = int(memory or 0)
        self.memory = max(total - min(policy.memory_reserve, total // 8), 0)
        disk, free = _number(readings, "disk_total"), _number(readings, "disk_free")
        self.disk = UNBOUNDED if disk is None else max(int(disk) - policy.disk_reserve, 0)
        self.disk_free = UNBOUNDED if free is None else max(int(free) - policy.disk_reserve, 0)
        if disk is None and free is None:
            self.disk = 0

    def take(self, key: PartKey, promise: Promise) -> None:
        self.promises[key] = promise
        promise.visible = bool(promise.machine) and promise.machine in self.standing
        if not promise.visible:
            self._count(promise.size, 1)
        if promise.label:
            named = (promise.counted.owner, promise.label)
            self.labels[named] = self.labels.get(named, 0) + 1

    def give_back(self, key: PartKey) -> Promise | None:
        promise = self.promises.pop(key, None)
        if promise is None:
            return None
        if not promise.visible:
            self._count(promise.size, -1)
        if promise.label:
            named = (promise.counted.owner, promise.label)
            self.labels[named] -= 1
            if not self.labels[named]:
                del self.labels[named]
        return promise

    def identify(self, key: PartKey, machine: str) -> None:
        """A promised machine is known by its id."""
        promise = self.promises.get(key)
        if promise is None or promise.machine == machine:
            return
        promise.machine = machine
        if not promise.visible and machine in self.standing:
            promise.visible = True
            self._count(promise.size, -1)

    def stand(self, machines: Iterable[Standing]) -> None:
        """These are all the machines there that take up room."""
        self.standing = {standing.machine.id: standing for standing in machines}
        self.recount()

    def recount(self) -> None:
        self.used_cpus = self.used_memory = self.used_disk = self.used_disk_unseen = 0
        self.machines = len(self.standing)
        for standing in self.standing.values():
            machine = standing.machine
            # One that stands still has its memory, and nobody runs it.
            self.used_cpus += 0 if machine.state is State.PAUSED else machine.size.cpus
            self.used_memory += machine.size.memory
            self.used_disk += machine.size.disk
        for promise in self.promises.values():
            promise.visible = bool(promise.machine) and promise.machine in self.standing
            if not promise.visible:
                self._count(promise.size, 1)

    def _count(self, size: Size, sign: int) -> None:
        self.used_cpus += sign * size.cpus
        self.used_memory += sign * size.memory
        self.used_disk += sign * size.disk
        self.used_disk_unseen += sign * size.disk
        self.machines += sign


def _number(readings: Mapping[str, Reading], name: str) -> float | None:
    reading = readings.get(name)
    value = reading.value if reading is not None and not reading.error else None
    if type(value) is bool or not isinstance(value, (int, float)):
        return None
    return value if math.isfinite(value) and value >= 0 else None
