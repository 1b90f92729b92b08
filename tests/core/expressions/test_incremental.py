"""What is kept up to date is what would be worked out from scratch, and nothing that changes is
missed."""

from __future__ import annotations

import random

import pytest

from encamp.core.expressions import Changes, Evaluator, Expression
from encamp.core.world import MISSING, MOST_REMEMBERED, Known, Unknown, World
from tests.core.expressions.site_of_tests import SCHEMA, compiled

TEXTS = (
    "host.load1 > 2 and host.memory_free < 4",
    "host.load1",
    "host.name in ['h1', 'h2'] or not host.swapping",
    "known(host.extra) and host.extra == 1",
    "machine.host.load1 > 1",
    "command.machine.host.load1 > 1",
    "command.machine.host.presence == 'joined' or command.state == 'done'",
    "hosts['h1'].load1 > 1",
    "machines['m1'].host.load1",
    "host.load1 > hosts['h2'].load1",
    "'h3' in hosts",
    "'h3' in group('workers')",
    "host in group('workers')",
    "machine.host in manager.clients",
    "len(hosts)",
    "len(manager.clients) != 0",
    "count(m for m in machines if m.state == 'running' and m.host == host.name)",
    "count(m for m in machines if m.host == host)",
    "sum(m.memory for m in machines if m.host == host.name and m.state == 'running')",
    "sum(h.load1 for h in hosts)",
    "sum(h.memory_free for h in group('workers') if h.presence == 'joined')",
    "mean(h.load1 for h in hosts if not h.swapping)",
    "min(h.load1 for h in hosts)",
    "max(m.memory for m in machines if m.host == host.name)",
    "any(h.load1 > 3 for h in hosts)",
    "all(h.load1 < 3 for h in group('servers'))",
    "any(m.state == 'failed' for m in machines if m.host == host.name)",
    "sum(m.memory for m in machines if m.host.load1 > 1)",
    "count(m for m in machines if m.host in group('workers'))",
    "count(c for c in commands if c.machine.host == host.name and c.state == 'waiting')",
    "count(c for c in commands if c.host == machine.host and c.state == machine.state)",
    "host.load1 > mean(h.load1 for h in hosts)",
    "count(m for m in machines if now - m.since > 500)",
    "count(m for m in machines if m.host == host.name and now - m.since > 500)",
    "max(now - m.since for m in machines if m.state == 'running')",
    "[h.name for h in hosts if h.load1 > 2]",
    "', '.join(m.id for m in machines if m.host == host.name)",
    "sum(h.extra for h in hosts)",
    "count(m for m in machines if m.host == hosts['h1'].extra)",
    "sum(1 for m in machines if m.memory > 3)",
    "len([m for m in machines if m.memory > 3])",
    "any(d > 3 for d in host.disks)",
    "count(h for h in hosts if any(d > 3 for d in h.disks))",
    "any(h.clock_offset > 3 for h in hosts if h.name == 'h1')",
    "all(h.load1 < 3 for h in hosts if h.name == 'h1' and h.presence == 'joined')",
    "sum(h.memory_free for h in group('servers') if h.name == 'h2')",
    "count(h for h in group('servers') if h.extra == 1)",
    "sum(m.memory for m in machines if m.host == host.name)",
    "any(m.memory > 3 for m in machines if m.host == host.name)",
    "all(m.memory > 3 for m in machines if m.host == host.name and now - m.since > 500)",
    "count(m for m in machines if m.host == host.name and m.memory > 3)",
    "[m.id for m in machines if m.host == host.name and m.memory > 3]",
    "len([m for m in machines if m.host == host.name and now - m.since > 500 and m.memory > 3])",
)

NAMES = {"host": "h", "machine": "m", "command": "c"}
GONE = Unknown("its plug-in failed")


def some_fact(chance: random.Random, kind: str, fact: str) -> Known:
    if chance.random() < 0.1:
        return GONE
    choices: dict[str, list[Known]] = {
        "name": [f"h{chance.randrange(6)}"],
        "presence": ["joined", "left", "lost"],
        "groups": [["workers"], ["servers"], ["workers", "servers"], []],
        "load1": [chance.random() * 5, 1, 2.0, float("inf"), float("nan"), -1e300, 1e300],
        "memory_free": [chance.randrange(8)],
        "swapping": [True, False],
        "disks": [[1, 2], [5], [], ["x", 4]],
        "rooms": [{"a": 1}],
        "extra": [1, 1.0, True, "h2", None, [1], 3.5],
        "host": [f"h{chance.randrange(6)}"],
        "machine": [f"m{chance.randrange(6)}"],
        "state": ["running", "failed", "waiting", "done"],
        "memory": [chance.randrange(8), "not a number"],
        "since": [float(chance.randrange(1000))],
    }
    return chance.choice(choices.get(fact, [1.5]))


def disturb(chance: random.Random, world: World) -> None:
    kind = chance.choice(list(NAMES))
    key = f"{NAMES[kind]}{chance.randrange(6)}"
    what = chance.random()
    facts = list(SCHEMA.kinds[kind].facts)
    if what < 0.08:
        world.drop(kind, key)
    elif what < 0.15:
        world.forget(kind, key, chance.sample(facts, 2))
    else:
        chosen = chance.sample(facts, chance.randrange(1, 4))
        world.put(kind, key, {fact: some_fact(chance, kind, fact) for fact in chosen})


def everything(
    evaluator: Evaluator, expressions: list[Expression]
) -> dict[tuple[Expression, str | None], object]:
    found: dict[tuple[Expression, str | None], object] = {}
    for expression in expressions:
        about = expression.about
        keys: list[str | None] = [None] if about is None else list(evaluator.world.things[about])
        for key in keys:
            value = evaluator.value(expression, key, 1000.0)
            # The reason may name things in another order; that nothing is known is what counts.
            found[expression, key] = "?" if isinstance(value, Unknown) else repr(value)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_kept_values_are_those_of_a_fresh_look_and_no_change_is_missed(seed: int) -> None:
    chance = random.Random(seed)
    world = World(SCHEMA)
    for _ in range(chance.randrange(60)):
        disturb(chance, world)
    world.take_changes()
    expressions = [compiled(text) for text in TEXTS]
    evaluator = Evaluator(world)
    for expression in expressions:
        evaluator.add(expression)
    before = everything(evaluator, expressions)
    for _ in range(120):
        for _ in range(chance.choice([1, 1, 1, 5])):
            disturb(chance, world)
        told = evaluator.update(world.take_changes())
        assert len(told) == len(set(told))
        after = everything(evaluator, expressions)
        assert after == everything(Evaluator(world), expressions)
        different = {place for place in after if before.get(place) != after[place]}
        missed = {(one.text, key) for one, key in different - set(told)}
        assert not missed
        before = after
        if chance.random() < 0.1:
            again = chance.choice(expressions)
            evaluator.remove(again)
            evaluator.remove(again)
            evaluator.add(again)
            evaluator.add(again)


def test_nothing_is_kept_of_what_was_removed() -> None:
    world = World(SCHEMA)
    evaluator = Evaluator(world)
    expressions = [compiled(text) for text in TEXTS]
    for expression in expressions:
        evaluator.add(expression)
    for expression in expressions:
        evaluator.remove(expression)
    world.put("host", "h1", {"load1": 1.0})
    assert evaluator.update(world.take_changes()) == []
    assert not evaluator._kept
    assert not evaluator._subjects
    assert not evaluator._users
    watching = evaluator._watching
    assert not (watching._listeners)
    assert not (watching._fixed)
    assert not (watching._referrers)


def test_equal_aggregates_are_kept_once_whatever_their_variables_are_called() -> None:
    evaluator = Evaluator(World(SCHEMA))
    for text in (
        "sum(h.load1 for h in hosts if h.swapping) > 1",
        "sum(x.load1 for x in hosts if x.swapping) < 5",
        "2 * sum([host.load1 for host in hosts if host.swapping]) == 4",
    ):
        evaluator.add(compiled(text))
    assert len(evaluator._kept) == 1
    evaluator.add(compiled("sum(h.load1 for h in hosts if not h.swapping) > 1"))
    assert len(evaluator._kept) == 2


def test_an_aggregate_whose_result_stays_the_same_concerns_nobody() -> None:
    world = World(SCHEMA)
    for index in range(5):
        world.put("host", f"h{index}", {"name": f"h{index}", "load1": float(index)})
    world.take_changes()
    evaluator = Evaluator(world)
    evaluator.add(compiled("host.memory_free > max(h.load1 for h in hosts)"))
    world.put("host", "h1", {"load1": 2.5})
    assert evaluator.update(world.take_changes()) == []
    world.put("host", "h1", {"load1": 9.0})
    assert len(evaluator.update(world.take_changes())) == 5


def test_what_has_just_changed_and_what_it_was_before() -> None:
    world = World(SCHEMA)
    world.put("host", "h1", {"load1": 1.0, "presence": "joined"})
    world.take_changes()
    evaluator = Evaluator(world)
    rising = compiled("changed(host.load1) and host.load1 > 2 * previous(host.load1)")
    assert rising.momentary
    evaluator.add(rising)
    world.put("host", "h1", {"load1": 5.0})
    batch = world.take_changes()
    assert evaluator.update(batch) == [(rising, "h1")]
    assert evaluator.value(rising, "h1", 0.0, changed=Changes(batch)) is True
    assert evaluator.value(rising, "h1", 0.0) is False


class Moments:
    """What is told about h1 at one moment after another, and what an expression says then."""

    def __init__(self, text: str) -> None:
        self.world = World(SCHEMA)
        self.expression = compiled(text)

    def told(self, **facts: Known) -> Known:
        self.world.put("host", "h1", facts)
        return self.now()

    def forgotten(self, name: str) -> Known:
        self.world.forget("host", "h1", [name])
        return self.now()

    def now(self) -> Known:
        # An evaluator of its own each time: triggers are reloaded while a host is away.
        return Evaluator(self.world).value(
            self.expression, "h1", 0.0, changed=Changes(self.world.take_changes())
        )


LOST = Unknown("the host is lost")


def test_what_is_seen_for_the_first_time_has_not_changed() -> None:
    moments = Moments("changed(host.name)")
    assert moments.told(name="6.1") is False
    assert moments.told(name="6.2") is True


def test_what_is_not_known_for_a_while_has_not_changed() -> None:
    moments = Moments("changed(host.name)")
    moments.told(name="6.1")
    assert moments.told(name=LOST) is False
    assert moments.told(name=Unknown("its plug-in failed")) is False
    assert moments.told(name="6.1") is False
    assert moments.forgotten("name") is False
    assert moments.told(name="6.1") is False


def test_what_changed_while_it_was_not_known_has_changed_once_it_is_known_again() -> None:
    moments = Moments("changed(host.name)")
    moments.told(name="6.1")
    moments.told(name=LOST)
    assert moments.told(name="6.2") is True
    assert moments.now() is False
    moments.forgotten("name")
    moments.forgotten("name")
    assert moments.told(name="6.3") is True
    assert moments.now() is False
    before = Moments("previous(host.name)")
    before.told(name="6.1")
    before.told(name=LOST)
    assert before.told(name="6.2") == "6.1"
    assert before.now() == "6.2"


def test_a_gap_that_is_over_in_the_same_moment_is_none() -> None:
    moments = Moments("changed(host.name)")
    moments.told(name="6.1")
    moments.world.put("host", "h1", {"name": LOST})
    assert moments.told(name="6.1") is False
    moments.world.put("host", "h1", {"name": LOST})
    assert moments.told(name="6.2") is True


def test_the_value_before_a_gap_goes_with_its_thing() -> None:
    moments = Moments("changed(host.name)")
    moments.told(name="6.1")
    moments.told(name=LOST)
    moments.world.drop("host", "h1")
    assert moments.told(name="6.2") is False


def test_what_is_remembered_over_gaps_is_bounded() -> None:
    world = World(SCHEMA)
    for number in range(MOST_REMEMBERED + 10):
        world.put("host", "h1", {f"fact{number}": 1})
        world.forget("host", "h1", [f"fact{number}"])
    for number in (0, MOST_REMEMBERED + 9):
        world.put("host", "h1", {f"fact{number}": 2})
    forgotten, remembered = world.take_changes()[-2:]
    assert forgotten.last_known == MISSING
    assert remembered.last_known == 1
