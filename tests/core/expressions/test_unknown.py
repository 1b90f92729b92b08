"""A value that is not known is neither an error nor false; it carries a reason."""

from __future__ import annotations

import pytest

from encamp.core.expressions import Evaluator
from encamp.core.world import Known, Unknown, World
from tests.core.expressions.site_of_tests import SCHEMA, compiled, small_site, value


@pytest.mark.parametrize(
    ("text", "subject", "expected"),
    [
        ("host.load1 > 1 and False", "node3", False),
        ("False and host.load1 > 1", "node3", False),
        ("host.load1 > 1 or True", "node3", True),
        ("True or host.load1 > 1", "node3", True),
        ("host.load1 > 1 and host.name == 'other'", "node3", False),
        ("host.load1 > 1 or host.name == 'node3'", "node3", True),
        ("known(host.load1)", "node3", False),
        ("known(host.load1 + 1)", "node1", True),
        ("known(host.load1) and host.load1 > 1", "node3", False),
        ("0 if not known(host.load1) else host.load1", "node3", 0),
        ("count(h for h in hosts if h.load1 > 0)", None, 2),
        ("any(h.load1 > 3 for h in hosts)", None, True),
        ("all(h.load1 < 9 for h in hosts)", None, True),
        ("sum(h.load1 for h in hosts)", None, 4.5),
        ("count(d for d in ['x', 1, 2] if d > 1)", None, 1),
    ],
)
def test_what_can_be_told_in_spite_of_it_is_told(
    text: str, subject: str | None, expected: Known
) -> None:
    assert value(text, subject) == expected


@pytest.mark.parametrize(
    ("text", "subject", "reason"),
    [
        ("host.load1 > 1", "node3", "host.load1 is not known: it was never reported"),
        ("not host.load1 > 1", "node3", "host.load1 is not known: it was never reported"),
        ("host.load1 > 1 and True", "node3", "host.load1 is not known: it was never reported"),
        ("host.load1 > 1 or False", "node3", "host.load1 is not known: it was never reported"),
        ("1 if host.load1 > 1 else 1", "node3", "host.load1 is not known: it was never reported"),
        ("machine.host.load1 > 1", "m4", "there is no host 'gone'"),
        ("hosts['nowhere'].load1 > 1", None, "there is no host 'nowhere'"),
        ("host.load1 > 1", "nowhere", "there is no host 'nowhere'"),
        (
            "host.load1 / (host.load1 - 0.5)",
            "node1",
            "host.load1 / (host.load1 - 0.5) divides by zero",
        ),
        (
            "host.memory_free % (host.disks[0] - 10)",
            "node1",
            "host.memory_free % (host.disks[0] - 10) divides by zero",
        ),
        ("host.disks[7] > 1", "node1", "host.disks has no element 7"),
        ("host.rooms['z'] > 1", "node3", "host.rooms has no element 'z'"),
        (
            "host.rooms['b'] > 1",
            "node3",
            "host.rooms['b'] > 1 cannot be told: '>' does not go between a dict and a whole number",
        ),
        (
            "host.rooms['b'] + 1",
            "node3",
            (
                "host.rooms['b'] + 1 cannot be worked out: '+' does not go between a"
                " dict and a whole"
                " number"
            ),
        ),
        (
            "host.rooms['a'] and True",
            "node3",
            "host.rooms['a'] is a whole number, where a truth value is needed",
        ),
        ("int(host.name)", "node1", "int(host.name) has no value"),
        (
            "mean(h.load1 for h in group('servers'))",
            None,
            (
                "mean(h.load1 for h in group('servers')) has no value: of host 'node3', h.load1 is"
                " not known: it was never reported"
            ),
        ),
        (
            "mean(h.load1 for h in hosts if h.name == '')",
            None,
            (
                "mean(h.load1 for h in hosts if h.name == '') has no value: there is nothing to"
                " take the mean of"
            ),
        ),
        (
            "max(h.load1 for h in hosts if h.name == '')",
            None,
            (
                "max(h.load1 for h in hosts if h.name == '') has no value: there is nothing to"
                " choose from"
            ),
        ),
        (
            "sum(h.since for h in hosts)",
            None,
            (
                "sum(h.since for h in hosts) has no value: it is not known of any of the 3 hosts:"
                " of host 'node1', h.since is not known: it was never reported"
            ),
        ),
        (
            "sum(room['x'] for room in host.disks)",
            "node1",
            "nothing in host.disks has a value that sum() can use",
        ),
    ],
)
def test_the_reason_can_be_acted_upon(text: str, subject: str | None, reason: str) -> None:
    assert value(text, subject) == Unknown(reason)


@pytest.mark.parametrize(
    "text",
    [
        "sum(h.since for h in hosts)",
        "sum(h.memory_free for h in group('servers'))",
        "mean(h.since for h in hosts)",
        "min(h.since for h in hosts)",
        "any(h.since > 1 for h in hosts)",
        "all(h.since > 1 for h in hosts)",
        "[h.since for h in hosts]",
        "count(h for h in hosts if h.since > 1)",
        "len([h for h in hosts if h.since > 1])",
        "count(h for h in group('servers') if h.load1 > 1)",
        "sum(h.load1 for h in hosts if h.since > 1)",
        "sum(h.load1 for h in hosts if h.load1 > 99)",
        "count(h for h in hosts if now - h.since > 1)",
        "sum(now - h.since for h in hosts)",
        "any(now - h.since > 1 for h in hosts if h.name != 'node1')",
        "count(h for h in hosts if h.since > 1 and now > 1)",
        "any(d > 1 for d in ['x', 'y'])",
        "count(d for d in ['x', 'y'] if d > 1)",
        "sum(hosts['node1'].groups)",
        "max(hosts['node1'].groups)",
    ],
)
def test_what_is_known_of_nothing_that_is_there_is_not_known_of_all(text: str) -> None:
    assert isinstance(value(text), Unknown)
    assert value(f"known({text})") is False


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sum(h.since for h in hosts if h.name == '')", 0),
        ("count(h for h in hosts if h.name == '')", 0),
        ("any(h.since > 1 for h in hosts if h.name == '')", False),
        ("all(h.since > 1 for h in hosts if h.name == '')", True),
        ("[h.since for h in hosts if h.name == '']", []),
        ("sum(now - h.since for h in hosts if h.name == '')", 0),
        ("sum(d for d in [])", 0),
        ("any(d > 1 for d in ['x'] if d == 'y')", False),
        ("sum(d for d in [1] if d > 1)", 0),
        # Of some it is known, so that the others are left out.
        ("sum(h.load1 for h in hosts)", 4.5),
        ("count(h for h in hosts if h.load1 > 99)", 0),
        ("len([h for h in hosts if h.load1 > 99])", 0),
        ("[h.name for h in hosts if h.load1 > 99]", []),
        ("count(m for m in machines if now - m.since > 99999)", 0),
        ("count(h for h in hosts if h.load1 > 99 and now - h.since > 1)", 0),
        ("any(h.load1 > 99 for h in hosts)", False),
        ("count(d for d in ['x', 1] if d > 1)", 0),
        # Nothing is asked of each but that it is there.
        ("count(hosts)", 3),
        ("len(commands)", 0),
        ("count(h for h in hosts)", 3),
        ("sum(1 for h in hosts)", 3),
    ],
)
def test_what_is_known_of_some_or_of_an_empty_collection_is_known(
    text: str, expected: Known
) -> None:
    assert value(text) == expected


def test_hosts_that_have_just_joined_are_not_short_of_memory() -> None:
    world = World(SCHEMA)
    short = compiled("sum(h.memory_free for h in group('workers')) < 16")
    evaluator = Evaluator(world)
    evaluator.add(short)

    def told(**facts: Known) -> list[tuple[str | None, Known]]:
        world.put("host", "h1", facts)
        found = evaluator.update(world.take_changes())
        return [(key, evaluator.value(one, key, 0.0)) for one, key in found]

    assert evaluator.value(short, None, 0.0) is True
    ((_, joined),) = told(name="h1", groups=["workers"])
    assert isinstance(joined, Unknown)
    assert told(memory_free=20) == [(None, False)]
    assert told(memory_free=0) == [(None, True)]
    ((_, lost),) = told(memory_free=Unknown("the host is lost"))
    assert lost == Unknown(
        "sum(h.memory_free for h in group('workers')) has no value: of host 'h1', h.memory_free is"
        " not known: the host is lost"
    )
    assert told(memory_free=Unknown("its plug-in failed")) == []
    now = evaluator.value(short, None, 0.0)
    assert isinstance(now, Unknown)
    assert now.reason.endswith("its plug-in failed")
    assert told(groups=[]) == [(None, True)]


def test_the_reason_of_a_plug_in_is_passed_on() -> None:
    world = small_site()
    world.put("host", "node1", {"load1": Unknown("its plug-in failed: no such file")})
    found = value("host.load1 < 3", "node1", world=world)
    assert found == Unknown("host.load1 is not known: its plug-in failed: no such file")


def test_a_fact_of_another_type_than_was_promised_is_not_known() -> None:
    world = small_site()
    world.put("host", "node1", {"load1": "high", "memory_free": True, "presence": None})
    assert value("host.load1 < 3", "node1", world=world) == Unknown(
        "host.load1 should be a number, but is a text"
    )
    assert value("host.memory_free < 3", "node1", world=world) == Unknown(
        "host.memory_free should be a whole number, but is a truth value"
    )
    assert value("host.presence == 'left'", "node1", world=world) == Unknown(
        "host.presence should be a text, but is nothing"
    )


def test_things_left_out_of_an_aggregate_are_counted() -> None:
    evaluator = Evaluator(small_site())
    for text, left_out in (
        ("sum(h.load1 for h in hosts) > 1", 1),
        ("count(h for h in hosts if h.load1 > 1) > 1", 1),
        ("count(h for h in hosts if h.load1 > 1 and h.name == 'node1') > 1", None),
        ("count(m for m in machines if now - m.since > 1) > 1", 1),
    ):
        expression = compiled(text)
        aggregate = text.removesuffix(" > 1")
        assert (
            evaluator.evaluate(expression, None, 0.0).seen.get(f"left out of {aggregate}")
            == left_out
        )
        evaluator.add(expression)
        assert (
            evaluator.evaluate(expression, None, 0.0).seen.get(f"left out of {aggregate}")
            == left_out
        )


def test_numbers_that_are_none_do_not_spoil_a_sum() -> None:
    world = World(SCHEMA)
    evaluator = Evaluator(world)
    total, smallest = (
        compiled("sum(h.load1 for h in hosts)"),
        compiled("min(h.load1 for h in hosts)"),
    )
    evaluator.add(total)
    evaluator.add(smallest)
    for load in (1.0, float("nan"), 2.0, float("inf"), 3.0):
        world.put("host", "a", {"load1": load})
        world.put("host", "b", {"load1": 0.1})
        evaluator.update(world.take_changes())
    assert evaluator.value(total, None, 0.0) == 3.1
    assert evaluator.value(smallest, None, 0.0) == 0.1
    world.put("host", "a", {"load1": float("nan")})
    evaluator.update(world.take_changes())
    assert evaluator.value(total, None, 0.0) == 0.1
