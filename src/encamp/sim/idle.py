"""Machines on a simulated host that no job has: left by one, or made ready for one to come.

The rules are the real agent's. The next job of the same owner that would get just such a machine
takes it; all of them give way to whoever needs their room, and are removed when no job has wanted
them for long.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from encamp.model.machine import IDLE_FOR, Machine, State
from encamp.sim.said import Claim, Execute
from encamp.sim.stock import Later
from encamp.sim.tally import Span
from encamp.sim.world import World

TICK = 1.0
"""Seconds from one look of an agent to the next."""
SOON = 60.0
"""Seconds within which an idle machine dies, where machines die."""


class Idle:
    """`machines`: all that are on the host; `changed`: is called when they are others."""

    def __init__(
        self,
        host: str,
        machines: dict[str, Machine],
        world: World,
        later: Later,
        changed: Callable[[], None],
    ) -> None:
        self._host = host
        self._machines = machines
        self._world = world
        self._later = later
        self._changed = changed
        self.tended = False
        """Is there an agent that looks how long they have stood?"""

    def machines(self) -> list[Machine]:
        """The one that has been idle longest first."""
        idle = [machine for machine in self._machines.values() if machine.idle]
        return sorted(idle, key=lambda machine: machine.changed)

    def leave(self, machine: str) -> None:
        """To the next job of its owner's."""
        now = self._world.clock.now
        self._machines[machine] = msgspec.structs.replace(
            self._machines[machine], idle=True, reason="it waits for a job", changed=now
        )
        self._world.log.say(self._host, "leaves", machine)
        self._changed()
        self._later(IDLE_FOR + TICK, self.clear)
        troubles = self._world.troubles
        if troubles.strikes(troubles.killed):
            self._later(troubles.chance.uniform(0.0, SOON), self._died, machine, now)

    def _died(self, machine: str, since: float) -> None:
        found = self._machines.get(machine)
        if found is not None and found.idle and found.changed == since:
            self.remove(machine, "dies idle")

    def take(self, execute: Execute) -> str:
        """The machine that a command would get, which is its own from now on; the one that has
        been idle for the shortest time. Empty: there is none."""
        for machine in reversed(self.machines()):
            if (
                machine.environment == execute.environment
                and machine.owner == execute.owner
                and machine.size == execute.size
                and machine.state is State.RUNNING
            ):
                self._stood(machine)
                self._world.tally.machines_reused += 1
                self._machines[machine.id] = msgspec.structs.replace(
                    machine,
                    idle=False,
                    reason="a job has taken it",
                    changed=self._world.clock.now,
                )
                self._changed()
                return machine.id
        return ""

    def make_room(self, claim: Claim) -> bool:
        """Remove some: the oldest first, and those last that the claim may be for. Were there any?
        As many go as make up for the machine that is claimed, as on a real host."""

        def order(machine: Machine) -> tuple[bool, float]:
            wanted = machine.owner == claim.owner and machine.environment == claim.environment
            return wanted, machine.changed

        missing = claim.size.memory
        given = []
        for machine in sorted(self.machines(), key=order):
            if missing > 0:
                given.append(machine)
                missing -= machine.size.memory
        for machine in given:
            self.remove(machine.id, "gives way")
        return bool(given)

    def clear(self) -> None:
        """Those go that nobody has wanted for long; if there is an agent to see to it."""
        if not self.tended:
            return
        since = self._world.clock.now - IDLE_FOR
        for machine in self.machines():
            if machine.changed <= since:
                self.remove(machine.id, "clears")

    def remove(self, machine: str, why: str) -> None:
        self._world.log.say(self._host, why, machine)
        self._stood(self._machines.pop(machine))
        self._changed()

    def crash(self) -> None:
        for machine in self.machines():
            self._stood(machine)

    def spans(self) -> list[Span]:
        """Since when those are idle that are still."""
        return [self._span(machine) for machine in self.machines()]

    def _stood(self, machine: Machine) -> None:
        self._world.tally.idle.append(self._span(machine))

    def _span(self, machine: Machine) -> Span:
        return Span(machine.changed, self._world.clock.now, machine.size)
