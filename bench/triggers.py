"""What one change of a property costs, with few and with very many triggers and hosts."""

from __future__ import annotations

import gc
import time
import tracemalloc

from bench.ground import Ground
from bench.measure import Series, paired_ratio, rounds
from bench.report import Figure, Goal, Report
from encamp.core.kinds import schema_of
from encamp.core.triggers import Engine
from encamp.core.world import World
from encamp.model.command import CommandDefinition
from encamp.model.property import PropertyDefinition, ValueKind
from encamp.model.trigger import Passage, TriggerDefinition

TITLE = "a change, seen by a thousand triggers"

EXPLANATION = """
The load of one host changes, the world takes it over, and the engine finds out what is to be done:
the processor's time for that, in one process. Of ten triggers seven compare the load of each host
with a fixed value, which is another for each trigger; two compare the sum of the loads of all hosts
with one; and one compares two other properties of each host. Few and many triggers and hosts are
measured in turns, and a ratio is that of a round.

What a change costs is not independent of how many triggers really have to be judged anew: those
that compare the changed property with another one, and not with a fixed value, are all looked at,
and each *different* aggregate over it is brought up to date. *Judging one trigger* is what each of
them costs.

Loading is the time until every trigger has been judged for every host once; the manager goes on in
the meantime, since it is done in slices.
"""

TRIGGERS = (10, 100, 1000)
HOSTS = (100, 1000, 10_000)
SMALLEST = (TRIGGERS[0], HOSTS[0])
LARGEST = (TRIGGERS[-1], HOSTS[-1])
CHANGES = 300
BUSY = 100
"""Hosts that report changes, on each of the sites the same ones with the same values."""
OTHERS = 30
"""Properties of a host beside its load."""

MIX = (
    *("host.load1 > {value}",) * 6,
    "host.load1 > {value} and host.presence == 'joined'",
    "host.p{property} > 100 * host.cpus + {value}",
    *("sum(h.load1 for h in hosts) > 1_000_000 * {value}",) * 2,
)
"""By the number of a trigger; the values are all different."""


def properties() -> list[PropertyDefinition]:
    names = ["load1", "cpus", *(f"p{number}" for number in range(OTHERS))]
    return [
        PropertyDefinition(name=name, command="x", return_type=ValueKind.FLOAT) for name in names
    ]


def definition(number: int, mix: tuple[str, ...]) -> TriggerDefinition:
    text = mix[number % len(mix)].format(
        # Two of them lie in the range of the loads, whatever the number of triggers.
        value=round(1 + number * 0.37, 2),
        property=number % OTHERS,
    )
    return TriggerDefinition(
        name=f"t{number}", when=Passage(text), do=(Passage("log('it is so')"),), hold=30.0
    )


class Site:
    """So many triggers over so many hosts."""

    def __init__(self, triggers: int, hosts: int, mix: tuple[str, ...] = MIX) -> None:
        self.world = World(schema_of(properties()))
        for number in range(hosts):
            facts = {f"p{other}": float(other) for other in range(OTHERS)}
            name = f"node{number}"
            self.world.put(
                "host",
                name,
                {"name": name, "presence": "joined", "load1": 0.5, "cpus": 4.0, **facts},
            )
        self.world.take_changes()
        self.engine = Engine(self.world)
        self.now = 1e9
        self.changes = 0
        started = time.process_time()
        commands = {"agent.ping": CommandDefinition(name="agent.ping")}
        definitions = [definition(number, mix) for number in range(triggers)]
        self.engine.load(definitions, commands, self.now)
        self.compiled = time.process_time() - started
        self.longest_step = 0.0
        while self.engine.next_look() == 0.0:
            step = time.process_time()
            self.engine.step((), self.now)
            self.longest_step = max(self.longest_step, time.process_time() - step)
        self.loaded = time.process_time() - started

    def cost(self) -> float:
        """Microseconds of the processor for one change, on average over many hosts."""
        gc.collect()
        looks = self.engine.looks
        started = time.process_time()
        for _ in range(CHANGES):
            self.changes += 1
            self.now += 0.01
            load = 0.5 + self.changes * 7919 % 10007 / 10007
            self.world.put("host", f"node{self.changes * 31 % BUSY}", {"load1": load})
            self.engine.step(self.world.take_changes(), self.now)
        spent = time.process_time() - started
        self.looks = (self.engine.looks - looks) / CHANGES
        return spent / CHANGES * 1e6


def memory_of(triggers: int, hosts: int) -> float:
    """MiB that the engine allocates and keeps for so many triggers over so many hosts."""
    site = Site(0, hosts)
    tracemalloc.start()
    try:
        site.engine.load([definition(number, MIX) for number in range(triggers)], {}, site.now)
        while site.engine.next_look() == 0.0:
            site.engine.step((), site.now)
        return tracemalloc.get_traced_memory()[0] / 2**20
    finally:
        tracemalloc.stop()


def measure(ground: Ground, *, quick: bool) -> Report:
    sizes = [(triggers, hosts) for triggers in TRIGGERS for hosts in HOSTS]
    sites = {}
    for size in sizes:
        gc.collect()
        sites[size] = Site(*size)
    touched = Site(1000, BUSY, ("host.load1 > {value} * host.cpus",))
    each = Series("1,000 triggers that all have to be judged", "µs of CPU")
    series = {
        (triggers, hosts): Series(f"{triggers:,} triggers, {hosts:,} hosts", "µs of CPU")
        for triggers, hosts in sizes
    }
    for _ in rounds("triggers", 3 if quick else 15):
        for size in sizes:
            series[size].add(sites[size].cost())
        each.add(touched.cost())
    figures = [
        Figure(
            f"a change with {triggers:,} triggers and {hosts:,} hosts / with 10 and 100",
            paired_ratio(series[triggers, hosts], series[SMALLEST]),
            goal=(Goal.AT_MOST, 1.5) if (triggers, hosts) == LARGEST else None,
        )
        for triggers, hosts in sizes
        if (triggers, hosts) != SMALLEST
    ]
    largest = sites[LARGEST]
    return Report(
        figures=[
            *figures,
            Figure("expressions worked out per change, largest", largest.looks, ""),
            Figure("expressions worked out per change, smallest", sites[SMALLEST].looks, ""),
            Figure("judging one trigger that has to be judged", each.median / 1000, "µs of CPU"),
            Figure("checking 1,000 triggers", largest.compiled, "s of CPU"),
            Figure("judging 1,000 triggers for 10,000 hosts once", largest.loaded, "s of CPU"),
            Figure("the longest of its slices", largest.longest_step, "s of CPU"),
            Figure("memory of 1,000 triggers over 10,000 hosts", memory_of(*LARGEST), "MiB"),
        ],
        background=[*series.values(), each],
    )
