"""A bait on a real Slurm node: what Slurm and its users see, and what an administrator does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from encamp.agent.bait.opening import STOPPED, Host
from encamp.agent.bait.watching import Watch, read_told
from encamp.agent.properties.finding import Plugins
from encamp.agent.properties.reader import Reader
from encamp.cli.main import run_command
from encamp.describe.property_files import batch_properties
from encamp.home import Home
from encamp.model.batch import BatchSettings, Threshold
from encamp.model.size import MIB
from tests.batch.slurm.private import Cluster, private_cluster, root_only

pytestmark = [pytest.mark.site, root_only]

SETTINGS = BatchSettings(
    system="slurm",
    close=Threshold(memory=512 * MIB),
    open=Threshold(memory=1024 * MIB),
    every=0.05,
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with private_cluster(nodes=1) as made:
        yield made


class Node:
    """The only node of the site, with an agent's watch over it and memory that a test frees."""

    def __init__(self, cluster: Cluster, home: Home) -> None:
        self.cluster = cluster
        self.home = home
        self.memory = 4096
        self.watch = self.another_agent()

    def another_agent(self) -> Watch:
        def host() -> Host:
            return Host(memory=self.memory * MIB, disk=0)

        self.watch = Watch(self.home, self.cluster.slurm(), SETTINGS, host)
        return self.watch

    def look(self, memory: int) -> str:
        """What Slurm says of the node after a look at it with so much memory free."""
        self.memory = memory
        self.watch.look()
        return self.state()

    def state(self) -> str:
        """As `sinfo` shows it to everybody: `idle`, `drained`, ..."""
        said = self.cluster.run("sinfo", "-h", "-N", "-n", "n1", "-o", "%T", check=False)
        return said.partition("\n")[0].strip().rstrip("*")

    def opens(self, memory: int) -> None:
        """A look with so much memory free opens it."""
        self.look(memory)
        assert self.told() == ("open", "")
        self.cluster.wait_for("an idle node", lambda: self.state() == "idle")

    def reason(self) -> str:
        """As everybody can read it."""
        return self.cluster.run("sinfo", "-h", "-R", "-o", "%E", user=self.cluster.users[0])

    def administer(self, *words: str) -> None:
        self.cluster.run("scontrol", "update", "NodeName=n1", *words)

    def told(self) -> tuple[str, str]:
        found = read_told(self.home)
        assert found is not None
        return found.state.value, found.reason


@pytest.fixture
def node(cluster: Cluster, tmp_path: Path) -> Iterator[Node]:
    (tmp_path / "home").mkdir()
    yield Node(cluster, Home(tmp_path / "home"))
    cluster.clear()


def test_no_job_comes_while_there_is_no_room_and_the_next_one_comes_when_there_is(
    node: Node,
) -> None:
    node.opens(600)
    assert node.look(500) == "drained"
    assert "500 MiB of memory free, 512 MiB wanted" in node.reason()
    job = node.cluster.submit("--wrap=true")
    assert node.look(1000) == "drained"
    assert node.cluster.state(job) == "PENDING"
    node.look(1024)
    assert node.told() == ("open", "")
    node.cluster.wait_for_state(job, "COMPLETED")
    node.opens(600)
    assert node.reason() == ""


def test_what_runs_when_it_is_closed_runs_to_its_end(node: Node) -> None:
    gate = node.cluster.users[0].directory / "gate"
    job = node.cluster.submit(f"--wrap=until [ -e {gate} ]; do sleep 0.05; done; exit 0")
    node.cluster.wait_for_state(job, "RUNNING")
    assert node.look(0) == "draining"
    assert node.told()[0] == "full"
    gate.touch()
    node.cluster.wait_for_state(job, "COMPLETED")
    node.cluster.wait_for("a drained node", lambda: node.state() == "drained")
    node.opens(4096)


@pytest.mark.parametrize("full", [False, True], ids=["open before", "full before"])
def test_an_administrators_drain_is_never_undone(node: Node, full: bool) -> None:
    node.look(0 if full else 4096)
    node.administer("State=drain", "Reason=a fan is broken")
    assert node.look(4096) == "drained"
    assert node.told() == ("closed", "a fan is broken")
    assert node.look(0) == "drained"
    node.another_agent()
    assert node.look(4096) == "drained"
    assert node.reason().strip() == "a fan is broken"
    node.administer("State=resume")
    node.opens(4096)


def test_an_administrator_may_adopt_a_closed_node_by_its_reason(node: Node) -> None:
    node.look(0)
    node.administer("Reason=encamp: 0 B of memory free, but leave it to me")
    assert node.look(4096) == "drained"
    assert node.told()[0] == "closed"


def test_another_agent_opens_what_the_last_one_closed(node: Node) -> None:
    assert node.look(0) == "drained"
    node.another_agent()
    node.opens(4096)


async def test_an_agent_that_ends_closes_and_the_next_one_opens(node: Node) -> None:
    task = asyncio.create_task(node.watch.run())
    async with asyncio.timeout(90):
        while node.watch.told is None:
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert node.state() == "drained"
    assert STOPPED in node.reason()
    node.another_agent()
    node.opens(4096)


def describe(cluster: Cluster, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's batch.yaml."""
    conf = cluster.site.conf
    (directory / "batch.yaml").write_text(
        f"system: slurm\nwatch: true\nprograms: {{conf: {conf}, node: n1}}\n"
    )
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(directory))


async def test_what_waits_in_the_queue_is_a_property(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = node.cluster
    describe(cluster, tmp_path, monkeypatch)
    (queue,) = [one for one in batch_properties() if one.name == "batch_waiting"]
    reader = Reader([queue], Plugins(), changed=lambda _: None, home=node.home)

    async def waiting() -> Any:
        reading = (await reader.read())["batch_waiting"]
        assert reading.error == ""
        return reading.value

    node.look(0)
    assert await waiting() == {}
    for comment in ("env:sl7", "env:debian12", "env:sl7", "nothing in particular"):
        cluster.submit(f"--comment={comment}", "--wrap=true")
    cluster.submit("--comment=env:sl7", "--hold", "--wrap=true")
    found = await waiting()
    assert isinstance(found, dict)
    assert {name: line["jobs"] for name, line in found.items()} == {"sl7": 2, "debian12": 1}
    assert all(line["oldest"] > 1e9 and line["cpus"] >= 1 for line in found.values())
    assert {line["owner"] for line in found.values()} == {cluster.users[0].name}


def test_users_are_told_why_a_job_waits_that_no_host_has_seen(
    node: Node,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    cluster = node.cluster
    describe(cluster, tmp_path, monkeypatch)
    for name in ("ENCAMP_HOME", "ENCAMP_AGENT_DOOR"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    node.look(0)
    job = cluster.submit("--wrap=true")
    cluster.run("scontrol", "hold", job)
    for asked in (f"slurm:{job}", job):
        assert run_command(["why", asked]) == 0
        printed = capfd.readouterr().out
        assert "held (PENDING)" in printed
        assert "the batch system says: JobHeld" in printed


def test_a_controller_that_is_gone_is_told_and_tried_again(node: Node) -> None:
    node.look(0)
    node.cluster.site.slurmctld.stop()  # Killed, it may come back with what was before.
    node.memory = 4096
    node.watch.look()
    assert node.told()[0] == "unknown"
    node.cluster.site.start_controller()

    def opened() -> bool:
        node.watch.look()
        return node.told()[0] == "open"

    node.cluster.wait_for("an open bait", opened)
    node.cluster.wait_for("an idle node", lambda: node.state() == "idle")
