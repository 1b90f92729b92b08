"""The cost of a change follows what it touches. Calls of functions are counted, not time."""

from __future__ import annotations

import functools
import gc
import math
import random
import sys
from collections.abc import Callable
from types import FrameType

import pytest

from encamp.core.expressions import Evaluator
from encamp.core.expressions.tally import Largest, Mean, Smallest, Sum
from encamp.core.world import Known, Unknown, World
from tests.core.expressions.site_of_tests import SCHEMA, compiled, host, machine

AGGREGATES = (
    "sum(h.load1 for h in hosts) > 1",
    "sum(h.memory_free for h in hosts) > 1",
    "mean(h.load1 for h in hosts) > 1",
    "count(h for h in hosts if h.load1 > 1) > 1",
    "any(h.load1 > 100 for h in hosts)",
    "all(h.load1 < 100 for h in group('workers'))",
    "max(h.load1 for h in hosts) > 1",
    "min(h.load1 for h in hosts) > 1",
)


def calls(action: Callable[[], object]) -> int:
    """How many calls, of Python's functions and of built-in ones, something takes.

    The collector is held meanwhile: what it calls is nobody's cost, and comes when it comes.
    """
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        if event in ("call", "c_call"):
            count += 1

    previous, collecting = sys.getprofile(), gc.isenabled()
    gc.disable()
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(previous)
        if collecting:
            gc.enable()
    return count


@functools.cache
def site_of(hosts: int) -> World:
    world = World(SCHEMA)
    for index in range(hosts):
        host(world, f"h{index}", groups=["workers"], load1=float(index % 7), memory_free=index)
        machine(world, f"m{index}", f"h{index}", memory=index)
    world.take_changes()
    return world


def cost(texts: tuple[str, ...], hosts: int) -> int:
    """Of one change, from the news to all values that may be others."""
    world = site_of(hosts)
    evaluator = Evaluator(world)
    for text in texts:
        evaluator.add(compiled(text))

    def step() -> None:
        for expression, key in evaluator.update(world.take_changes()):
            evaluator.value(expression, key, 0.0)

    world.put("host", "h3", {"load1": 3.0})
    world.put("host", "h3", {"load1": 3.25})
    step()
    world.put("host", "h3", {"load1": 3.5})
    return calls(step)


@pytest.mark.parametrize("text", AGGREGATES[:6])
def test_an_aggregate_costs_the_same_for_ten_thousand_hosts_as_for_ten(text: str) -> None:
    assert cost((text,), 10_000) == cost((text,), 10)


@pytest.mark.parametrize("text", AGGREGATES[6:])
def test_the_largest_and_smallest_cost_about_the_same(text: str) -> None:
    """What has gone is taken out of the heap now and then."""
    assert cost((text,), 10_000) <= cost((text,), 10) + 20


@pytest.mark.parametrize(
    "text",
    [
        "host.load1 > 2",
        "machine.host.load1 > 2",
        "hosts['h3'].load1 > 2",
        "count(m for m in machines if m.host == host.name and m.host.load1 > 1) > 2",
        "sum(m.memory for m in machines if m.host == host.name) > host.load1",
    ],
)
def test_what_concerns_one_thing_costs_the_same_however_many_there_are(text: str) -> None:
    assert cost((text,), 10_000) == cost((text,), 10)


def test_expressions_that_read_something_else_cost_nothing() -> None:
    others = tuple(
        text
        for index in range(250)
        for text in (
            f"host.memory_free > {index}",
            f"hosts['h{index + 4}'].load1 > 2",
            f"sum(h.memory_free for h in hosts if h.memory_free > {index}) > 2",
            f"count(m for m in machines if m.memory > {index}) > 2",
        )
    )
    assert cost(("host.load1 > 2", *others), 50) == cost(("host.load1 > 2",), 50)


def test_a_value_costs_the_same_however_many_things_there_are() -> None:
    found = []
    for hosts in (10, 10_000):
        evaluator = Evaluator(site_of(hosts))
        expressions = [compiled(text) for text in AGGREGATES]
        for expression in expressions:
            evaluator.add(expression)
            evaluator.value(expression, None, 0.0)
        found.append(
            [calls(functools.partial(evaluator.value, one, None, 0.0)) for one in expressions]
        )
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "text", ["sum(h.load1 for h in hosts) > 1", "count(h for h in hosts if h.load1 > 1) > 1"]
)
def test_that_nothing_is_known_of_any_costs_the_same_however_many_there_are(text: str) -> None:
    found = []
    for hosts in (10, 10_000):
        world = World(SCHEMA)
        for index in range(hosts):
            host(world, f"h{index}")
        world.take_changes()
        evaluator = Evaluator(world)
        evaluator.add(compiled(text))
        evaluator.value(compiled(text), None, 0.0)
        found.append([calls(functools.partial(_tell, evaluator, load)) for load in (2.0, LOST)])
    assert found[0] == found[1]


LOST = Unknown("the host is lost")


def _tell(evaluator: Evaluator, load: Known) -> None:
    evaluator.world.put("host", "h3", {"load1": load})
    told = evaluator.update(evaluator.world.take_changes())
    assert len(told) == 1
    for expression, key in told:
        assert isinstance(evaluator.value(expression, key, 0.0), Unknown) is (load is LOST)


def test_sums_never_drift() -> None:
    chance = random.Random(4)
    values: dict[str, float] = {}
    total, mean = Sum(), Mean()
    for step in range(20_000):
        key = str(chance.randrange(50))
        if key in values:
            for tally in (total, mean):
                tally.discard(key, values[key])
            del values[key]
        if chance.random() < 0.8:
            value = chance.choice([1e16, -1e16, 1e-16, 0.1, 1e300, -1e300, 5e-324, 3.5])
            values[key] = value * chance.random()
            for tally in (total, mean):
                tally.add(key, values[key])
        if step % 100 == 0 and values:
            assert total.result() == math.fsum(values.values())
    for key, value in values.items():
        total.discard(key, value)
    assert total.result() == 0
    assert total.scaled == 0


def test_sums_of_whole_numbers_stay_whole() -> None:
    total = Sum()
    total.add("a", 1 << 100)
    total.add("b", 1)
    assert total.result() == (1 << 100) + 1
    total.add("c", 0.5)
    assert total.result() == float((1 << 100) + 1)
    total.discard("c", 0.5)
    assert total.result() == (1 << 100) + 1


def test_heaps_do_not_grow_with_the_number_of_changes() -> None:
    chance = random.Random(4)
    values: dict[str, float] = {}
    smallest, largest = Smallest(), Largest()
    for _ in range(20_000):
        key = str(chance.randrange(100))
        for tally in (smallest, largest):
            if key in values:
                tally.discard(key, values[key])
        values[key] = chance.random()
        for tally in (smallest, largest):
            tally.add(key, values[key])
        assert len(largest.heap) <= 2 * 100 + 66
        if chance.random() < 0.01:
            assert smallest.result() == min(values.values())
            assert largest.result() == max(values.values())
