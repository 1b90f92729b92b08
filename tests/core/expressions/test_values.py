"""What expressions come to."""

from __future__ import annotations

import datetime
import zoneinfo

import pytest

from encamp.core.expressions import Evaluator, compile_expression
from encamp.core.schema import Type
from encamp.core.world import Known, World
from tests.core.expressions.site_of_tests import SCHEMA, compiled, host, small_site, value


@pytest.mark.parametrize(
    ("text", "subject", "expected"),
    [
        ("host.memory_free > 4 * GiB and host.load1 < 2", "node1", True),
        ("host.memory_free > 4 * GiB and host.load1 < 2", "node2", False),
        ("host['load1']", "node1", 0.5),
        ("host", "node1", "node1"),
        ("machine.host.load1", "m3", 4.0),
        ("machine.host['load1'] == hosts['node2'].load1", "m3", True),
        ("machine.host == 'node2'", "m3", True),
        ("machine.host == hosts['node2']", "m3", True),
        ("host.disks[0] + host.disks[-1]", "node1", 30),
        ("host.rooms['b']['c']", "node3", 2),
        ("'a' in host.rooms and 10 in hosts['node1'].disks", "node3", True),
        ("host in group('workers')", "node1", True),
        ("host not in group('workers')", "node3", True),
        ("machine.host in group('workers')", "m1", True),
        ("machine.host in hosts", "m4", False),
        ("host.name.startswith('node') and endswith(host.name, '1')", "node1", True),
        ("lower('ABC') + 'x'.upper() + ' y '.strip()", None, "abcXy"),
        ("'a.b'.removeprefix('a').removesuffix('b')", None, "."),
        ("'a,b'.split(',')", None, ["a", "b"]),
        ("'-'.join(['a', 1, True])", None, "a-1-True"),
        ("matches(host.name, 'node[1-2]')", "node2", True),
        ("matches(host.name, 'node[!1-2]')", "node2", False),
        (
            "f'{host.name}: {host.load1:.2f} {host.memory_free:,} {host:>8}'",
            "node1",
            "node1: 0.50 8,589,934,592    node1",
        ),
        ("f'{host.disks} {host.disks[0] * 2:04d}'", "node1", "[10,20] 0020"),
        ("1 < host.load1 * 4 < 3", "node1", True),
        ("1 < host.load1 + 1 < 2 != host.load1 * 2 in [1, 1.0]", "node1", True),
        ("'hot' if host.load1 > 2 else 'cool'", "node2", "hot"),
        ("min(3, 1, 2) + max(1, 2) + abs(-3) + round(2.6) + int('7') + int(1.9)", None, 17),
        ("float('1.5') + round(1.26, 1)", None, 2.8),
        ("bool(host.groups)", "node1", True),
        ("str(1) + str(True) + str(None)", None, "1TrueNone"),
        ("len(host.name) + len(host.disks) + len({'a': 1})", "node1", 8),
        ("sum(host.disks) + max(host.disks) + mean(host.disks)", "node1", 65.0),
        ("any(d > 15 for d in host.disks) and not all(d > 15 for d in host.disks)", "node1", True),
        ("[d * 2 for d in host.disks if d > 10]", "node1", [40]),
        ("count(d for d in host.disks if d > 10)", "node1", 1),
        ("sum(sum(d * e for e in host.disks) for d in host.disks)", "node1", 900),
        ("[d for d in [1, 2] if d in [e for e in [2, 3]]]", None, [2]),
        ("count(k for k in host.rooms)", "node3", 2),
        ("len(manager.clients) != 0", None, True),
        ("len(hosts) + count(machines)", None, 7),
        ("len(group('workers'))", None, 2),
        ("sum(h.memory_free for h in hosts)", None, 10 << 30),
        ("mean(h.load1 for h in group('workers'))", None, 2.25),
        ("min(h.load1 for h in hosts) + max(h.load1 for h in hosts)", None, 4.5),
        ("count(m for m in machines if m.state == 'running' and m.host == host.name)", "node1", 2),
        ("count(m for m in machines if m.state == 'running' and m.host == host.name)", "node3", 0),
        ("sum(m.memory for m in machines if host.name == m.host)", "node1", 3 << 30),
        ("count(m for m in machines if now - m.since > 750)", None, 2),
        ("sum(m.memory for m in machines if m.host.load1 > 1)", None, 4 << 30),
        ("[m.id for m in machines if m.host in group('workers')]", None, ["m1", "m2", "m3"]),
        (
            "any(m.state == 'paused' for m in machines) and all(m.memory > 1 for m in machines)",
            None,
            True,
        ),
        (
            "any(h.load1 > 99 for h in hosts) or all(h.load1 > 99 for h in hosts if h.name == '')",
            None,
            True,
        ),
        ("count(host for host in hosts if host.load1 > 1)", None, 1),
        ("host.extra is None", "node1", False),
        ("None == None and None is None", None, True),
        ("-host.load1 + +1", "node1", 0.5),
        ("host.presence in {'joined', 'left'}", "node1", True),
        ("host.presence in ('left',)", "node1", False),
        ("TiB == 1024 * GiB and GiB == 1024 * MiB and MiB == 1024 * KiB", None, True),
        ("  host.load1 > 0.1\n    and # why not\n  host.load1 < 1", "node1", True),
    ],
)
def test_value(text: str, subject: str | None, expected: Known) -> None:
    world = small_site()
    world.put("host", "node1", {"extra": 1})
    found = value(text, subject, world=world)
    assert found == expected
    assert type(found) is type(expected)


def test_perugias_example_works_as_it_is_written() -> None:
    expression = compile_expression(" len(manager.clients) != 0 ", SCHEMA)
    world = World(SCHEMA)
    evaluator = Evaluator(world)
    evaluator.add(expression)
    assert evaluator.value(expression, None, 0.0) is False
    host(world, "node1")
    assert evaluator.update(world.take_changes()) == [(expression, None)]
    assert evaluator.evaluate(expression, None, 0.0).seen == {"len(manager.clients)": 1}
    world.put("host", "node1", {"presence": "lost"})
    assert evaluator.update(world.take_changes()) == [(expression, None)]
    assert evaluator.value(expression, None, 0.0) is False


def test_the_time_is_what_is_passed_in_where_the_zone_is() -> None:
    expression = compiled("[now, hour, minute, weekday, day, month]")
    moment = datetime.datetime(2026, 3, 1, 23, 30, tzinfo=datetime.UTC).timestamp()
    assert expression.timed
    utc = Evaluator(small_site()).value(expression, None, moment)
    assert utc == [moment, 23, 30, 6, 1, 3]
    zone = zoneinfo.ZoneInfo("Europe/Rome")
    rome = Evaluator(small_site(), zone).value(expression, None, moment)
    assert rome == [moment, 0, 30, 0, 2, 3]


@pytest.mark.parametrize(
    "text", ["host.load1 > 1", "len(hosts) > 1", "any(h.load1 > 1 for h in hosts)"]
)
def test_what_does_not_ask_for_the_time_is_not_timed(text: str) -> None:
    assert not compiled(text).timed


@pytest.mark.parametrize(
    "text", ["hour > 3", "count(m for m in machines if m.since < now) > 0", "now > host.since"]
)
def test_what_asks_for_the_time_is_timed(text: str) -> None:
    assert compiled(text).timed


def test_what_was_read_is_told_as_it_was_written() -> None:
    evaluator = Evaluator(small_site())
    expression = compiled(
        "host.load1 > 1 and count(m for m in machines if m.host == host.name) > hour"
    )
    assert expression.about == "host"
    assert expression.type is Type.BOOL
    assert evaluator.evaluate(expression, "node1", 7200.0).seen == {
        "host.load1": 0.5,
        "count(m for m in machines if m.host == host.name)": 2,
        "hour": 2,
    }


def test_long_values_are_told_in_short() -> None:
    world = small_site()
    world.put("host", "node1", {"disks": list(range(10_000)), "presence": "x" * 1000})
    seen = (
        Evaluator(world)
        .evaluate(compiled("len(host.disks) > 3 or host.presence == 'left'"), "node1", 0.0)
        .seen
    )
    assert seen == {"host.disks": "10000 elements", "host.presence": "x" * 200 + "..."}


def test_values_of_all_things_at_once() -> None:
    evaluator = Evaluator(small_site())
    ranked = dict(evaluator.values(compiled("host.memory_free / GiB"), 0.0))
    assert ranked["node1"] == 8.0
    assert ranked["node2"] == 2.0
    assert set(ranked) == {"node1", "node2", "node3"}


@pytest.mark.parametrize(
    "text",
    [
        "count(h for h in hosts if h.load1 > 1)",
        "count(h for h in hosts if any(d > 1 for d in h.disks))",
        "sum(h.load1 for h in hosts if h.name != '__0__')",
        "max(m.memory for m in machines if m.host == host.name)",
    ],
)
def test_what_was_seen_is_called_as_it_was_written(text: str) -> None:
    expression = compiled(f"{text} > 0")
    assert text in expression.reads
    seen = Evaluator(small_site()).evaluate(expression, expression.about and "node1", 0.0).seen
    assert text in seen
