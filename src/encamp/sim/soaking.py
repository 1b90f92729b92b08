"""Driving a simulated site through faults, and looking at every step whether it keeps what Encamp
promises. A seed that breaks a promise can be repeated exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import msgspec

from encamp.model.command import CommandDefinition
from encamp.model.machine import IDLE_FOR
from encamp.sim.clock import Clock
from encamp.sim.faults import Fault, FaultKind, Saboteur, plan
from encamp.sim.measures import Course
from encamp.sim.promises import Promises
from encamp.sim.simulation import BEGIN, Simulation
from encamp.sim.site import Compared, SimulatedSite
from encamp.sim.workload import SimulatedJob
from encamp.sim.written import BrokenPromiseError

KEPT = 400
"""Lines of the log that are told of a simulation that broke a promise."""

DRAIN = 180.0
"""Seconds after the last job and the last fault, until when all must have been told and cleared:
whoever waits for an answer, pauses, or keeps a promise has done so by then."""

LONGEST = 24 * 3600.0
"""Seconds after the last fault in which all jobs must be over, beside what they run for."""

ANSWERS = 50
"""Things that happen between two times that somebody asks why."""


class Driven(msgspec.Struct, frozen=True, kw_only=True):
    """A simulation in which every promise was kept."""

    seed: int
    faults: dict[str, int]
    ended: dict[str, int]
    """How many jobs ended in each state."""
    happened: int
    course: Course | None = None
    """If it was to be measured, too."""


class BrokenError(Exception):
    """A promise was broken, and how it came to that."""

    def __init__(self, seed: int, policy: str, what: str, log: list[str]) -> None:
        super().__init__(what)
        self.seed = seed
        self.policy = policy
        self.what = what
        self.log = log


def drive(
    site: SimulatedSite,
    jobs: list[SimulatedJob],
    compared: Compared,
    seed: int,
    listen: Callable[[str], None] | None = None,
    *,
    measured: bool = False,
    commands: Mapping[str, CommandDefinition] | None = None,
) -> Driven:
    """Run the jobs while faults come about; raises `BrokenError`."""
    simulation = Simulation(
        site,
        jobs,
        compared,
        seed=seed,
        faults=True,
        keep=KEPT,
        listen=listen,
        commands=commands,
    )
    seconds = max((job.submitted for job in jobs), default=0.0) + 60.0
    faults = plan(list(simulation.hosts), seconds, seed)
    saboteur = Saboteur(simulation, faults)
    promises = Promises(simulation, saboteur)
    saboteur.stepped = promises.check_manager
    try:
        _run(simulation, saboteur, promises, faults)
    except BrokenPromiseError as broken:
        raise BrokenError(seed, compared.name, str(broken), simulation.log.lines()) from None
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise BrokenError(seed, compared.name, what, simulation.log.lines()) from error
    records = simulation.written.records
    states = [records[job].state.value for job in simulation.jobs if job in records]
    return Driven(
        seed=seed,
        faults=dict(Counter(fault.kind.value for fault in faults)),
        ended=dict(Counter(states)),
        happened=simulation.clock.passed,
        course=simulation.course() if measured else None,
    )


def _run(
    simulation: Simulation, saboteur: Saboteur, promises: Promises, faults: list[Fault]
) -> None:
    clock = simulation.clock
    calm = max((_end(fault) for fault in faults), default=0.0)
    work = sum(job.run for job in simulation.jobs.values())
    last = max((job.submitted for job in simulation.jobs.values()), default=0.0) + BEGIN
    latest = max(calm, last) + work + LONGEST
    simulation.start()
    while simulation.open or clock.now < calm or simulation.manager is None:
        if not clock.step():
            if not simulation.open:
                break
            clock.now = latest + 1
        if clock.now > latest:
            raise BrokenPromiseError(simulation.stuck().sentence)
        promises.check()
        if clock.passed % ANSWERS == 0:
            promises.check_answers()
    saboteur.disarm()
    simulation.forget_triggers()
    _let_pass(DRAIN, clock, promises)
    if any(host.idle.machines() for host in simulation.hosts.values()):
        # Nobody wants them any more.
        _let_pass(IDLE_FOR + DRAIN, clock, promises)
    promises.check_end()


def _let_pass(seconds: float, clock: Clock, promises: Promises) -> None:
    until = clock.now + seconds
    while (soon := clock.next()) is not None and soon <= until:
        clock.step()
        promises.check()
    clock.now = until


def _end(fault: Fault) -> float:
    forever = fault.kind is FaultKind.HOST_GONE
    return fault.at if forever else fault.at + fault.seconds
