"""The triggers that are shipped for worker nodes, on a site whose clock is played."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from encamp.agent.commands.offers import plugins
from encamp.core.actions import IssueCommand
from encamp.core.happenings import EnvironmentsRead, Happening, Joined, Reported, TimePassed
from encamp.core.step import Core
from encamp.describe.property_files import batch_properties, shipped_properties
from encamp.describe.sources import Level, Source
from encamp.describe.trigger_files import read_triggers
from encamp.model.machine import Machine, State
from encamp.model.node import Node, NodeState
from encamp.model.property import Reading, Value
from encamp.model.size import MIB, Size

FILE = Path(__file__).parents[3] / "examples" / "triggers" / "nodes.yaml"
COMMANDS = {name: offer.definition for name, offer in plugins(ours_only=True)[0].items()}
PROPERTIES = (*shipped_properties(), *batch_properties())
GIB = 1024 * MIB
ROOMY, SMALL = 16 * GIB, 8 * GIB
FACTS: dict[str, Value] = {"cpus": 1, "memory": GIB, "reuse": False, "classes": []}
ENVIRONMENTS = ("slurm-node", "job")


class Site:
    """Two hosts, the second with more room, the first looking at the queue; and two environments,
    of which one has worker nodes. One of the triggers is at work."""

    def __init__(self, trigger: str) -> None:
        self.core = Core(PROPERTIES, COMMANDS)
        self.now = 1000.0
        self.done: list[Any] = []
        self.happens(EnvironmentsRead({name: FACTS | {"name": name} for name in ENVIRONMENTS}))
        self.joins("host1", SMALL)
        self.joins("host2", ROOMY)
        source = Source(str(FILE), Level.SITE, 0, str(FILE.parent), str(FILE))
        schema = self.core.picture.world.schema
        triggers = read_triggers([(source, FILE.read_bytes())], schema, COMMANDS)
        self.core.load([one for one in triggers if one.name == trigger], self.now)

    def joins(
        self, name: str, memory: int, *machines: Machine, can: Sequence[str] = ENVIRONMENTS[:1]
    ) -> None:
        """`can`: the environments that it can have nodes of."""
        values: dict[str, Value] = {
            "can_enrol": list[Value](can),
            "cpus": 8,
            "memory_total": memory,
            "memory_free": memory,
            "disk_free": memory,
            "disk_total": memory,
        }
        self.happens(
            Joined(
                name=name,
                instance=name,
                version="1",
                clock_offset=0.0,
                commands=tuple(COMMANDS.values()),
                properties=PROPERTIES,
                machines=machines,
                readings={name: Reading(value, at=self.now) for name, value in values.items()},
            )
        )

    def waits(self, environment: str) -> None:
        line: Value = {"jobs": 3, "cpus": 3, "oldest": self.now, "owner": "alice"}
        readings = {"batch_waiting": Reading({environment: line}, at=self.now)}
        self.happens(Reported("host1", readings))

    def happens(self, happening: Happening) -> None:
        actions = self.core.step(happening, self.now).actions
        self.done += [one for one in actions if isinstance(one, IssueCommand)]

    def passes(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.core.next_look()) is not None and due <= end:
            self.now = max(self.now, due) + 0.001
            self.happens(TimePassed())
        self.now = end
        self.happens(TimePassed())

    def told(self) -> list[tuple[str, str, Any]]:
        return [
            (*one.hosts, one.name, one.arguments.get("environment") or one.arguments.get("node"))
            for one in self.done
        ]


def machine(name: str, state: NodeState, *, idle: bool = False, is_open: bool = True) -> Machine:
    created = 900.0 + ord(name)
    quiet = created if idle else None
    return Machine(
        id=name,
        name=name,
        owner=0,
        host="host2",
        environment="slurm-node",
        image="0" * 64,
        size=Size(1, 128 * MIB),
        state=State.RUNNING,
        reason="it runs",
        created=created,
        changed=created,
        node=Node(system="slurm", name=name, state=state, since=created, quiet=quiet, open=is_open),
    )


def test_a_node_is_started_where_most_room_is_for_jobs_that_wait() -> None:
    site = Site("node_for_waiting")
    site.waits("slurm-node")
    site.passes(5)
    assert site.done == []
    site.passes(14)
    assert site.told() == [("host2", "node.start", "slurm-node")]


def test_of_two_hosts_with_the_same_room_one_is_asked() -> None:
    site = Site("node_for_waiting")
    site.joins("host1", ROOMY)
    site.waits("slurm-node")
    site.passes(19)
    assert len(site.done) == 1


def test_hosts_that_can_have_no_node_are_passed_over() -> None:
    site = Site("node_for_waiting")
    site.joins("host2", ROOMY, can=())
    site.waits("slurm-node")
    site.passes(19)
    assert site.told() == [("host1", "node.start", "slurm-node")]


def test_jobs_wait_if_no_host_can_have_a_node_or_has_room_for_it() -> None:
    site = Site("node_for_waiting")
    site.joins("host2", ROOMY, can=())
    site.joins("host1", 512 * MIB)
    site.waits("slurm-node")
    site.passes(1000)
    assert site.done == []


def test_nobody_waits_for_nodes_of_other_environments() -> None:
    site = Site("node_for_waiting")
    site.waits("job")
    site.passes(100)
    assert site.done == []


def test_one_node_comes_at_a_time_and_none_while_one_is_free() -> None:
    site = Site("node_for_waiting")
    site.joins("host2", ROOMY, machine("a", NodeState.JOINING))
    site.waits("slurm-node")
    site.passes(60)
    assert site.done == []
    site.joins("host2", ROOMY, machine("a", NodeState.MEMBER, idle=True))
    site.passes(60)
    assert site.done == [], "the batch system will find the one that is free"
    site.joins("host2", ROOMY, machine("a", NodeState.MEMBER))
    site.passes(15)
    assert site.told() == [("host2", "node.start", "slurm-node")]


def test_a_node_that_somebody_has_closed_is_not_free() -> None:
    closed = machine("a", NodeState.MEMBER, idle=True, is_open=False)
    for trigger in ("node_for_waiting", "nodes_ready"):
        site = Site(trigger)
        site.joins("host2", ROOMY, closed, machine("b", NodeState.MEMBER))
        site.waits("slurm-node")
        site.passes(15)
        assert site.told() == [("host2", "node.start", "slurm-node")]


def test_nodes_are_kept_ready_where_that_is_wanted() -> None:
    site = Site("nodes_ready")
    site.passes(11)
    assert site.told() == [("host2", "node.start", "slurm-node")]
    ready = [machine(name, NodeState.MEMBER, idle=True) for name in "ab"]
    site.joins("host2", ROOMY, *ready)
    site.done.clear()
    site.passes(100)
    assert site.done == []


def test_the_oldest_of_too_many_that_are_idle_leaves() -> None:
    site = Site("node_too_many")
    site.joins("host2", ROOMY, *(machine(name, NodeState.MEMBER, idle=True) for name in "bac"))
    site.passes(590)
    assert site.done == []
    site.passes(20)
    assert site.told() == [("host2", "node.leave", "a")]
