"""What placing a request costs: on small and large sites, with few and very many that wait."""

from __future__ import annotations

import gc
import time
from collections import deque

from bench.ground import Ground
from bench.measure import Series, paired_ratio, rounds
from bench.report import Figure, Goal, Report
from encamp.core.actions import BeginPart, ClaimRoom, PlacementAction
from encamp.core.happenings import (
    ClaimAnswered,
    Happening,
    Joined,
    PartMoved,
    Reported,
    Submitted,
    TimePassed,
)
from encamp.core.step import Core
from encamp.model.command import CommandDefinition
from encamp.model.job import Command, Job, MachineRequest, User
from encamp.model.property import PropertyDefinition, Reading, ValueKind
from encamp.model.request import PartState, Request
from encamp.model.size import Size

TITLE = "placing requests on ten thousand hosts"

EXPLANATION = """
The core alone, in one process: what it costs of the processor's time until a request has its host,
and until it is over. Each placement is the whole life of a request, in steps of their own: it is
submitted, hosts are filtered by its requirements and sorted by its rank and then by the site's, the
best one is asked and promises, the machine comes up, and in the end its room is given back.
Meanwhile as many hosts report another load as requests are placed, and both the requirements and
the rank read the load. Requests are of 8 owners and 20 shapes: environments, sizes, requirements
and ranks.

*With so many waiting* the site is full, so that a request waits until another is over, and then the
one is placed whose turn it is. Small and large are measured in turns, and a ratio is that of a
round.
"""

HOSTS = (100, 1000, 10_000)
WAITING = (1000, 10_000, 100_000)
SMALL_SITE = 100
"""Hosts of the site on which many wait."""
PLACED = 200
OWNERS = 8
SHAPES = 20
GIB = 1 << 30
RUN = CommandDefinition(name="request.run")
PROPERTIES = tuple(
    PropertyDefinition(name=name, command="x", return_type=kind, ticks=ticks)
    for name, kind, ticks in (
        ("cpus", ValueKind.INT, 3600.0),
        ("memory_total", ValueKind.INT, 3600.0),
        ("load1", ValueKind.FLOAT, 10.0),
        ("kvm", ValueKind.STR, 60.0),
    )
)


def request(number: int, submitted: float) -> Request:
    shape = number % SHAPES
    owner = f"user{number % OWNERS}"
    user = User(owner, 1000 + number % OWNERS, 1000, owner, (), "/")
    environment = f"environment{shape % 5}"
    machine = MachineRequest(environment=environment, owner=user)
    return Request(
        id=f"r{number}",
        owner=owner,
        submitted=submitted,
        environment=environment,
        size=Size(1 + shape % 2, GIB + (shape % 4) * GIB),
        requirements=f"host.kvm == 'works' and host.load1 < {40 + shape}",
        rank="host.cpus / (1 + host.load1)" if shape % 2 else "host.room_memory",
        machine=machine,
        job=Job(machine=machine, command=Command(("true",))),
    )


class Site:
    def __init__(self, hosts: int, waiting: int = 0, *, cpus: int = 16) -> None:
        self.core = Core(PROPERTIES)
        self.now = 1e9
        self.hosts = hosts
        self.number = 0
        self.reports = 0
        self.running: deque[BeginPart] = deque()
        self.placed = 0
        self.longest_step = 0.0
        for number in range(hosts):
            readings = {
                "cpus": Reading(cpus + number % 3 * cpus),
                "memory_total": Reading(64 * GIB),
                "load1": Reading(number * 7919 % 1000 / 100),
                "kvm": Reading("works" if number % 10 else "absent"),
            }
            self.step(
                Joined(
                    name=f"node{number}",
                    instance="one",
                    version="1",
                    clock_offset=0.0,
                    properties=PROPERTIES,
                    commands=(RUN,),
                    readings=readings,
                )
            )
        while waiting and self.number - self.placed < min(WAITING):
            self.submit()
        started, before = time.process_time(), self.number
        while self.number - self.placed < waiting:
            self.submit()
        spent = time.process_time() - started
        self.submitting = spent / max(self.number - before, 1) * 1e6

    def step(self, happening: Happening) -> None:
        """One step, and all that follows at once."""
        todo = deque(self._stepped(happening))
        while self.core.next_look() == 0.0:
            todo += self._stepped(TimePassed())
        while todo:
            action = todo.popleft()
            if isinstance(action, ClaimRoom):
                todo += self._stepped(
                    ClaimAnswered(
                        request=action.request, number=action.number, attempt=action.attempt
                    )
                )
            elif isinstance(action, BeginPart):
                self.placed += 1
                self.running.append(action)
                todo += self._stepped(_moved(action, PartState.RUNNING))

    def _stepped(self, happening: Happening) -> list[PlacementAction]:
        self.now += 0.001
        started = time.process_time()
        actions = self.core.step(happening, self.now).placement
        self.longest_step = max(self.longest_step, time.process_time() - started)
        return actions

    def submit(self) -> None:
        self.number += 1
        self.step(Submitted(request(self.number, self.now)))

    def report(self) -> None:
        self.reports += 1
        load = self.reports * 7919 % 1000 / 100
        self.step(Reported(f"node{self.reports * 31 % self.hosts}", {"load1": Reading(load)}))

    def cost(self) -> float:
        """Microseconds of the processor for one placement."""
        gc.collect()
        before = self.placed
        started = time.process_time()
        for _ in range(PLACED):
            self.submit()
            self.report()
            if len(self.running) > self.hosts:
                self.step(_moved(self.running.popleft(), PartState.OVER))
        return (time.process_time() - started) / (self.placed - before) * 1e6

    def cost_of_turn(self) -> float:
        """The same, when somebody waits for every place."""
        gc.collect()
        before = self.placed
        started = time.process_time()
        for _ in range(PLACED):
            self.submit()
            self.report()
            self.step(_moved(self.running.popleft(), PartState.OVER))
        return (time.process_time() - started) / (self.placed - before) * 1e6


def _moved(part: BeginPart, state: PartState) -> PartMoved:
    return PartMoved(
        request=part.request,
        number=part.number,
        attempt=part.attempt,
        state=state,
        exit_code=0 if state is PartState.OVER else None,
        began=True,
    )


def measure(ground: Ground, *, quick: bool) -> Report:
    sites = {}
    for hosts in HOSTS:
        gc.collect()
        sites[hosts] = Site(hosts)
        sites[hosts].cost()
    queues = {}
    for waiting in WAITING[:2] if quick else WAITING:
        gc.collect()
        queues[waiting] = Site(SMALL_SITE, waiting, cpus=2)
        queues[waiting].cost_of_turn()
    gc.freeze()
    for site in (*sites.values(), *queues.values()):
        site.longest_step = 0.0
    placing = {hosts: Series(f"{hosts:,} hosts", "µs of CPU") for hosts in sites}
    turns = {
        waiting: Series(f"{SMALL_SITE} hosts, {waiting:,} waiting", "µs of CPU")
        for waiting in queues
    }
    for _ in rounds("placement", 3 if quick else 15):
        for hosts, site in sites.items():
            placing[hosts].add(site.cost())
        for waiting, site in queues.items():
            turns[waiting].add(site.cost_of_turn())
    largest, longest = HOSTS[-1], max(queues)
    return Report(
        figures=[
            Figure(
                f"placements over {largest:,} hosts",
                1e6 / placing[largest].median,
                "a second of CPU",
                goal=(Goal.AT_LEAST, 1500),
            ),
            *(
                Figure(
                    f"a placement over {hosts:,} hosts / over {HOSTS[0]}",
                    paired_ratio(placing[hosts], placing[HOSTS[0]]),
                    goal=(Goal.AT_MOST, hosts / HOSTS[0]),
                )
                for hosts in HOSTS[1:]
            ),
            *(
                Figure(
                    f"a placement with {waiting:,} waiting / with {WAITING[0]:,}",
                    paired_ratio(turns[waiting], turns[WAITING[0]]),
                    goal=(Goal.AT_MOST, 1.5) if waiting == longest else None,
                )
                for waiting in list(queues)[1:]
            ),
            Figure(
                f"submitting one of {longest:,} that wait", queues[longest].submitting, "µs of CPU"
            ),
            Figure(
                f"the longest step with {longest:,} waiting",
                queues[longest].longest_step * 1000,
                "ms of CPU",
            ),
            Figure(
                f"the longest step over {largest:,} hosts",
                sites[largest].longest_step * 1000,
                "ms of CPU",
            ),
        ],
        background=[*placing.values(), *turns.values()],
    )
