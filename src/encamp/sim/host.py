"""A simulated host: its room, its images and templates, its machines, and what is on its disk.

All of this outlives its agent. Machines, and what is being copied or made, do not outlive the
host itself.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from encamp.model.machine import Machine
from encamp.model.size import Size
from encamp.sim.carrying import Carried, Carrying
from encamp.sim.idle import Idle
from encamp.sim.said import Claim
from encamp.sim.site import HostKind
from encamp.sim.stock import Stock
from encamp.sim.world import World


class Promise(msgspec.Struct, frozen=True, gc=False):
    size: Size
    environment: str
    until: float


class SimulatedHost:
    def __init__(self, name: str, kind: HostKind, groups: tuple[str, ...], world: World) -> None:
        self.name = name
        self.kind = kind
        self.groups = groups
        self.world = world
        self.up = True
        self.boots = 0
        """What was planned before the last crash does not come about."""
        self.claims: dict[str, Promise] = {}
        self.commands: dict[str, Carried] = {}
        """By their ids; those that are over, too: none is carried out again."""
        self.open: dict[str, Carried] = {}
        """Those whose end the manager has not written down yet."""
        self.machines: dict[str, Machine] = {}
        self.going: set[str] = set()
        """Machines that are being ended."""
        self.filled = 0
        """How often a promise or a machine has been added."""
        self.machines_changed: Callable[[], None] = lambda: None
        self.command_moved: Callable[[], None] = lambda: None
        self.stock = Stock(name, kind, world, self.later)
        self.idle = Idle(name, self.machines, world, self.later, self._idle_changed)
        self.carrying = Carrying(self)

    # ── room ─────────────────────────────────────────────────────────────────────────────────────

    def live_claims(self) -> dict[str, Promise]:
        """Promises that have not expired. The others are forgotten."""
        now = self.world.clock.now
        expired = [claim for claim, promise in self.claims.items() if promise.until <= now]
        for claim in expired:
            del self.claims[claim]
        return self.claims

    def used(self) -> Size:
        """What machines and promises take up."""
        cpus = memory = disk = 0
        sizes = [machine.size for machine in self.machines.values()]
        sizes += [promise.size for promise in self.live_claims().values()]
        for size in sizes:
            cpus += size.cpus
            memory += size.memory
            disk += size.disk
        return Size(cpus, memory, disk)

    def find_room(self, claim: Claim) -> str:
        """Room that there is, or that idle machines give way to; or what there is not enough of."""
        while (lacks := self.lacks(claim.size)) and claim.size.cpus <= self.kind.cpus:
            if not self.idle.make_room(claim):
                break
        return lacks

    def promise(self, claim: Claim) -> None:
        self.filled += 1
        until = self.world.clock.now + claim.seconds
        self.claims[claim.id] = Promise(claim.size, claim.environment, until)

    def lacks(self, size: Size) -> str:
        """What there is not enough of for one more machine; nothing, if there is room. Processors
        are shared out by the manager."""
        if size.cpus > self.kind.cpus:
            return f"it has {self.kind.cpus} processors"
        used = self.used()
        if used.memory + size.memory > self.kind.memory:
            return "it has not enough memory left"
        if used.disk + size.disk > self.kind.disk:
            return "it has not enough disk left"
        return ""

    # ── machines ─────────────────────────────────────────────────────────────────────────────────

    def remove(self, machine: str, *, only_idle: bool = False) -> bool:
        """End a machine; `only_idle`: unless a job has it. Does it go?"""
        found = self.machines.get(machine)
        if found is None or (only_idle and not found.idle):
            return False
        if found.idle:
            self.idle.remove(machine, "removes")
        else:
            self.world.log.say(self.name, "removes", machine)
            self.end_machine(machine)
        return True

    def end_machine(self, machine: str) -> None:
        self.going.add(machine)
        environment = self.world.environments[self.machines[machine].environment]
        self.later(environment.end, self.machine_gone, machine)

    def machine_gone(self, machine: str) -> None:
        self.going.discard(machine)
        if self.machines.pop(machine, None) is not None:
            self.machines_changed()

    def _idle_changed(self) -> None:
        self.filled += 1
        self.machines_changed()

    # ── crashes ──────────────────────────────────────────────────────────────────────────────────

    def crash(self) -> None:
        """The power is gone: what is on the disk stays."""
        self.up = False
        self.boots += 1
        self.idle.crash()
        self.machines.clear()
        self.going.clear()
        self.stock.crash()

    def boot(self) -> None:
        self.up = True
        self.carrying.boot()

    def later(self, seconds: float, do: Callable[..., None], *arguments: object) -> None:
        """Unless the host crashes before."""
        self.world.clock.after(seconds, self._unless_crashed, self.boots, do, arguments)

    def _unless_crashed(
        self, boots: int, do: Callable[..., None], arguments: tuple[object, ...]
    ) -> None:
        if boots == self.boots:
            do(*arguments)
