"""A small site to ask expressions about."""

from __future__ import annotations

from encamp.core.expressions import Evaluator, Expression, compile_expression
from encamp.core.schema import Fact, Kind, Schema, Type
from encamp.core.world import Known, World

SCHEMA = Schema(
    kinds={
        "host": Kind(
            "host",
            "hosts",
            {
                "name": Fact(Type.STR),
                "presence": Fact(Type.STR, words=("joined", "left", "lost")),
                "groups": Fact(Type.LIST),
                "since": Fact(Type.FLOAT),
                "clock_offset": Fact(Type.FLOAT),
                "load1": Fact(Type.FLOAT),
                "memory_free": Fact(Type.INT),
                "swapping": Fact(Type.BOOL),
                "disks": Fact(Type.LIST),
                "rooms": Fact(Type.DICT),
                "extra": Fact(Type.ANY),
            },
        ),
        "machine": Kind(
            "machine",
            "machines",
            {
                "id": Fact(Type.STR),
                "host": Fact(Type.STR, refers="host"),
                "state": Fact(Type.STR, words=("running", "paused", "failed")),
                "memory": Fact(Type.INT),
                "since": Fact(Type.FLOAT),
                "environment": Fact(Type.STR),
            },
            key="id",
        ),
        "command": Kind(
            "command",
            "commands",
            {
                "id": Fact(Type.STR),
                "machine": Fact(Type.STR, refers="machine"),
                "host": Fact(Type.STR, refers="host"),
                "state": Fact(Type.STR),
                "issued": Fact(Type.FLOAT),
            },
            key="id",
        ),
    },
    groups=frozenset({"workers", "servers"}),
)


def host(world: World, name: str, **facts: Known) -> None:
    given: dict[str, Known] = {"name": name, "presence": "joined", "groups": [], **facts}
    world.put("host", name, given)


def machine(world: World, name: str, on: str, **facts: Known) -> None:
    given: dict[str, Known] = {"id": name, "host": on, "state": "running", **facts}
    world.put("machine", name, given)


def small_site() -> World:
    """Three hosts of which the last has said little; four machines."""
    world = World(SCHEMA)
    host(world, "node1", groups=["workers"], load1=0.5, memory_free=8 << 30, disks=[10, 20])
    host(world, "node2", groups=["workers"], load1=4.0, memory_free=2 << 30, disks=[5])
    host(world, "node3", groups=["servers"], rooms={"a": 1, "b": {"c": 2}})
    machine(world, "m1", "node1", memory=1 << 30, since=100.0)
    machine(world, "m2", "node1", memory=2 << 30, since=200.0)
    machine(world, "m3", "node2", memory=4 << 30, since=300.0, state="paused")
    machine(world, "m4", "gone", memory=8 << 30)
    world.take_changes()
    return world


def compiled(text: str) -> Expression:
    return compile_expression(text, SCHEMA, wants=None)


def value(text: str, subject: str | None = None, *, world: World | None = None) -> Known:
    """Of an expression that was added, and the same as of one that was not."""
    site = world or small_site()
    expression = compiled(text)
    evaluator = Evaluator(site)
    fresh = evaluator.value(expression, subject, 1000.0)
    evaluator.add(expression)
    kept = evaluator.value(expression, subject, 1000.0)
    assert type(fresh) is type(kept)
    assert fresh == kept
    return kept
