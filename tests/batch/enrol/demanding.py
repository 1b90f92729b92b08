"""What becomes of worker nodes on a whole site with the triggers that are shipped, whichever its
batch system is: real daemons, real guests, a real clock."""

from __future__ import annotations

import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import yaml

from encamp.agent.journal import Journal
from encamp.agent.nodes.keeping import change, nodes_of
from encamp.home import Home
from encamp.model.machine import Machine
from encamp.model.node import NodeState
from tests.batch.enrol.conftest import PATIENCE, wait_until
from tests.site.siting import RunningSite

SHIPPED = Path(__file__).parents[3] / "examples" / "triggers" / "nodes.yaml"
HOST = "node1"
WAITS = "while ! test -e /tmp/end; do sleep 0.1; done"
QUICK = (
    ("batch_waiting_since > 10", "batch_waiting_since > 0"),
    ("now - c.changed < 30", "now - c.changed < 8"),
    ("now - c.changed < 10", "now - c.changed < 1"),
    ("m.node_idle)) < 2", "m.node_idle)) < 1"),
    ("m.node_idle) > 2", "m.node_idle) > 1"),
    ("ticks: 10s", "ticks: 1s"),
    ("hold: 10m", "hold: 2s"),
)
"""What is changed of the triggers, so that nobody waits for long: one node is kept ready."""
PROPERTIES = "batch_waiting: {ticks: 1}\ncan_enrol: {ticks: 1}\n"


class Demand(ABC):
    """A site with one host that has a bridge and looks at the queue, and whoever submits jobs."""

    environment: str

    def __init__(self, site: RunningSite, home: Home) -> None:
        self.site = site
        self.journal = Journal(home)

    # ── its batch system ─────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def submit(self, script: str) -> str:
        """A job for a node of the environment."""

    @abstractmethod
    def waits(self, job: str) -> bool: ...

    @abstractmethod
    def node_of(self, job: str) -> str:
        """Where it runs; empty if it does not."""

    @abstractmethod
    def has_succeeded(self, job: str) -> bool: ...

    @abstractmethod
    def known(self) -> list[str]:
        """The nodes that are machines, as the batch system knows them."""

    @abstractmethod
    def inside(self, node: str, script: str) -> None: ...

    # ── its host ─────────────────────────────────────────────────────────────────────────────────

    def set_up(self, described: Path) -> None:
        """`described`: what the administrator has written."""
        for directory in (self.site.root / HOST, self.site.config):
            for name in ("settings.yaml", "environments.yaml"):
                shutil.copy(described / name, directory / name)
        # What failed here before, in other tests, is soon forgotten.
        batch = f"{(described / 'batch.yaml').read_text()}every: 1s\npause: 1s\n"
        (self.site.root / HOST / "batch.yaml").write_text(f"{batch}watch: true\n")
        (self.site.root / HOST / "properties.yaml").write_text(PROPERTIES)
        (self.site.config / "batch.yaml").write_text(batch)

    def use(self, *names: str) -> None:
        """These of the triggers, and no others."""
        text = SHIPPED.read_text().replace("slurm-node", self.environment)
        for shipped, quick in QUICK:
            assert shipped in text
            text = text.replace(shipped, quick)
        triggers = yaml.safe_load(text)
        wanted = {name: triggers[name] for name in names}
        (self.site.config / "triggers.yaml").write_text(yaml.safe_dump(wanted))

    def reload(self) -> None:
        self.site("trigger", "reload")

    def nodes(self, *states: NodeState) -> list[Machine]:
        found = nodes_of(self.journal)
        return [one for one in found if one.node and (one.node.state in states or not states)]

    def node(self, name: str) -> Machine:
        (found,) = [one for one in self.nodes() if one.name == name]
        return found

    def change(self, machine: Machine, **fields: float) -> None:
        """As if somebody had decided so."""
        changed = change(
            self.journal, machine, lambda node: msgspec.structs.replace(node, **fields), PATIENCE
        )
        assert changed is not None

    def starts(self) -> list[dict[str, Any]]:
        return [one for one in self.site.commands().values() if one["name"] == "node.start"]

    def running(self, job: str) -> Machine:
        self.wait_for(f"a node for job {job}", lambda: self.node_of(job))
        return self.node(self.node_of(job))

    def is_there(self, machine: Machine) -> bool:
        return self.journal.read(machine.id) is not None and machine.name in self.known()

    def wait_for(self, what: str, true: Callable[[], object]) -> None:
        """Until it comes about; what all daemons say, if it does not."""
        try:
            wait_until(true, what)
        except AssertionError as error:
            said = [f"── {name}\n{one.said()[-3000:]}" for name, one in self.site.daemons.items()]
            raise AssertionError("\n".join((str(error), *said))) from None

    def wait_until_left(self, machine: Machine) -> None:
        self.wait_for(f"{machine.name} to leave", lambda: self.journal.read(machine.id) is None)
        assert machine.name not in self.known()


def nodes_come_for_jobs_and_leave(demand: Demand) -> None:
    """Of each node it is seen how it comes, what it is for, and when it leaves."""
    site = demand.site
    demand.use("node_for_waiting")
    site.start()
    site.wait_for_hosts(HOST)
    job = demand.submit(WAITS)
    assert demand.waits(job)

    # One comes, also if the manager is killed on the way.
    demand.wait_for("a node on its way", demand.nodes)
    site.daemons["manager"].kill()
    site.start("manager")
    first = demand.running(job)
    site.wait_for_hosts(HOST)
    assert first.node is not None
    meanwhile = [one for one in demand.starts() if one["issued"] <= first.node.since]
    assert [(one["issuer"], one["host"]) for one in meanwhile] == [
        ("trigger:node_for_waiting", HOST)
    ]

    # It outlives its agent, and the next one looks after it.
    site.daemons[HOST].kill()
    assert demand.node_of(job) == first.name
    site.start(HOST)
    site.wait_for_hosts(HOST)

    # Its lease ends: it takes no more jobs, for which another comes, and ends its own.
    demand.change(first, until=time.time())
    demand.wait_for("the node to be leaving", lambda: demand.nodes(NodeState.LEAVING))
    other = demand.submit("true")
    demand.wait_for("the other job", lambda: demand.has_succeeded(other))
    (second,) = demand.nodes(NodeState.MEMBER)
    assert second.name != first.name
    assert demand.node_of(job) == first.name
    assert demand.is_there(first)
    demand.inside(first.name, "touch /tmp/end")
    demand.wait_for("the job", lambda: demand.has_succeeded(job))
    demand.wait_until_left(first)
    assert demand.is_there(second), "it may be idle for longer"


def nodes_are_kept_ready_and_none_too_many(demand: Demand) -> None:
    """On a site where one idle node is left."""
    (former,) = demand.nodes()
    demand.use("nodes_ready", "node_too_many")
    demand.reload()
    job = demand.submit(WAITS)
    assert demand.running(job).name == former.name
    demand.wait_for("another node to be ready", lambda: len(demand.nodes(NodeState.MEMBER)) == 2)
    (ready,) = [one for one in demand.nodes() if one.name != former.name]
    assert demand.node_of(job) == former.name
    demand.inside(former.name, "touch /tmp/end")
    demand.wait_for("the job", lambda: demand.has_succeeded(job))
    demand.wait_until_left(former)
    assert demand.is_there(ready), "one is kept"

    # Nobody wants any more: it leaves when it has been idle for long enough.
    demand.use()
    demand.reload()
    demand.change(ready, idle=2.0)
    demand.wait_until_left(ready)
    assert demand.known() == []
    assert "failed" not in {one["state"] for one in demand.starts()}
