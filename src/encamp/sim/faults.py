"""Faults: what goes wrong on a simulated site, and when. Planned from a seed, always the same."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Sequence

import msgspec

from encamp.core.actions import Action, PlacementAction
from encamp.sim.manager import SimulatedManager
from encamp.sim.simulation import BEGIN, Simulation


class FaultKind(enum.Enum):
    HOST_CRASH = "host crashes"
    """Its machines die; it comes back later, with its disk."""
    HOST_GONE = "host is gone for good"
    AGENT_KILLED = "agent is killed"
    """Machines and commands go on; it is started again later."""
    AGENT_STOPPED = "agent is stopped"
    """The same, with a goodbye."""
    NETWORK_CUT = "network is cut"
    """Between a host and the manager."""
    MANAGER_KILLED = "manager is killed"
    MANAGER_DYING = "manager dies amid what it does"
    """Of what it has decided only a part is done."""
    MESSAGES_LOST = "messages are lost"
    MESSAGES_LATE = "messages are late"
    MESSAGES_TWICE = "messages come twice"
    CLAIMS_REFUSED = "claims are refused"
    COPIES_FAIL = "images cannot be copied"
    STARTS_FAIL = "machines cannot be made"
    MACHINES_DIE = "machines die"


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    kind: FaultKind
    seconds: float
    """For how long."""
    host: str = ""
    part: float = 0.0
    """How much of what may fail fails; how late messages are; after how much of what it does the
    manager dies."""


TROUBLES = {
    FaultKind.MESSAGES_LOST: "lost",
    FaultKind.MESSAGES_LATE: "late",
    FaultKind.MESSAGES_TWICE: "twice",
    FaultKind.CLAIMS_REFUSED: "refused",
    FaultKind.COPIES_FAIL: "copy",
    FaultKind.STARTS_FAIL: "start",
    FaultKind.MACHINES_DIE: "killed",
}
"""What changes a chance, and which."""

OF_HOSTS = (
    FaultKind.HOST_CRASH,
    FaultKind.HOST_GONE,
    FaultKind.AGENT_KILLED,
    FaultKind.AGENT_STOPPED,
    FaultKind.NETWORK_CUT,
)

RARE = {FaultKind.HOST_GONE: 0.2}
"""How often a kind is chosen, beside the others."""


def plan(hosts: Sequence[str], seconds: float, seed: int) -> list[Fault]:
    """Faults over a time; one host at most is gone for good, which is the first."""
    chance = random.Random(f"faults {seed}")
    kinds = list(FaultKind)
    weights = [RARE.get(kind, 1.0) for kind in kinds]
    gone = False
    faults = []
    for _ in range(chance.randint(1, 14)):
        [kind] = chance.choices(kinds, weights)
        host = chance.choice(hosts) if kind in OF_HOSTS else ""
        if kind is FaultKind.HOST_GONE:
            if gone or len(hosts) < 3:
                continue
            gone, host = True, hosts[0]
        faults.append(
            Fault(
                at=round(BEGIN + chance.uniform(-BEGIN, seconds), 3),
                kind=kind,
                # Shorter and longer than what anybody waits for.
                seconds=round(chance.choice((0.01, 1.0, 5.0, 20.0, 60.0, 300.0)), 3)
                * chance.uniform(0.5, 1.5),
                host=host,
                part=round(chance.uniform(0.05, 1.0), 3),
            )
        )
    return sorted(faults, key=lambda fault: fault.at)


class Saboteur:
    """Lets planned faults come about, and ends them."""

    def __init__(self, simulation: Simulation, faults: Sequence[Fault]) -> None:
        self._simulation = simulation
        self._down: dict[str, int] = dict.fromkeys(simulation.hosts, 0)
        """Faults that keep each host down at the moment;"""
        self._still: dict[str, int] = dict.fromkeys(simulation.hosts, 0)
        """its agent;"""
        self._cut: dict[str, int] = dict.fromkeys(simulation.hosts, 0)
        """its network;"""
        self._dead = 0
        """the manager."""
        self._strength: dict[str, list[float]] = {name: [] for name in TROUBLES.values()}
        self._deeds = 0
        """After so many more things that the manager does it dies; 0: it does not."""
        self._pause = 0.0
        self.crashed: set[str] = set()
        """Hosts that have ever been down;"""
        self.gone: set[str] = set()
        """that never come back."""
        self.stepped: Callable[[SimulatedManager], None] = lambda _: None
        simulation.watch = self._watch
        for fault in faults:
            simulation.clock.at(fault.at, self._begin, fault)

    def _watch(self, manager: SimulatedManager) -> None:
        manager.acts = self._acts
        manager.stepped = self.stepped

    def disarm(self) -> None:
        """What was to strike and has not had the chance to does not any more."""
        self._deeds = 0

    def _acts(self, action: PlacementAction | Action) -> None:
        if self._deeds:
            self._deeds -= 1
            if not self._deeds:
                self._kill_manager(self._pause)

    # ── beginning and ending ─────────────────────────────────────────────────────────────────────

    def _begin(self, fault: Fault) -> None:
        simulation, host = self._simulation, fault.host
        simulation.log.say("fault", fault.kind.value, host, f"{fault.seconds:.3f}", fault.part)
        if fault.kind in TROUBLES:
            self._strength[TROUBLES[fault.kind]].append(fault.part)
            self._set_troubles()
        elif fault.kind is FaultKind.MANAGER_KILLED:
            self._kill_manager(fault.seconds)
            return
        elif fault.kind is FaultKind.MANAGER_DYING:
            self._deeds = 1 + int(fault.part * 10)
            self._pause = fault.seconds
            return
        elif fault.kind in (FaultKind.HOST_CRASH, FaultKind.HOST_GONE):
            self._crash(host)
            if fault.kind is FaultKind.HOST_GONE:
                self.gone.add(host)
                return
        elif fault.kind is FaultKind.NETWORK_CUT:
            self._cut[host] += 1
            if host not in simulation.bus.cut:
                simulation.bus.cut.add(host)
                simulation.reach_changed(host)
        else:
            self._still[host] += 1
            simulation.stop_agent(host, goodbye=fault.kind is FaultKind.AGENT_STOPPED)
        simulation.clock.after(fault.seconds, self._end, fault)

    def _end(self, fault: Fault) -> None:
        simulation, host = self._simulation, fault.host
        simulation.log.say("fault", f"no more: {fault.kind.value}", host)
        if fault.kind in TROUBLES:
            self._strength[TROUBLES[fault.kind]].remove(fault.part)
            self._set_troubles()
        elif fault.kind is FaultKind.HOST_CRASH:
            self._down[host] -= 1
            if not self._down[host] and host not in self.gone:
                simulation.hosts[host].boot()
                self._maybe_start_agent(host)
        elif fault.kind is FaultKind.NETWORK_CUT:
            self._cut[host] -= 1
            if not self._cut[host]:
                simulation.bus.cut.discard(host)
                simulation.reach_changed(host)
        else:
            self._still[host] -= 1
            self._maybe_start_agent(host)

    def _set_troubles(self) -> None:
        for name, strengths in self._strength.items():
            setattr(self._simulation.troubles, name, max(strengths, default=0.0))

    def _crash(self, host: str) -> None:
        simulation = self._simulation
        self.crashed.add(host)
        self._down[host] += 1
        if simulation.hosts[host].up:
            simulation.stop_agent(host, goodbye=False)
            simulation.hosts[host].crash()

    def _maybe_start_agent(self, host: str) -> None:
        simulation = self._simulation
        ready = simulation.hosts[host].up and not self._still[host]
        if ready and not simulation.agents[host].running:
            simulation.start_agent(host)

    def _kill_manager(self, seconds: float) -> None:
        self._dead += 1
        self._deeds = 0
        self._simulation.kill_manager()
        self._simulation.clock.after(seconds, self._restart_manager)

    def _restart_manager(self) -> None:
        self._dead -= 1
        if not self._dead:
            self._simulation.start_manager()
