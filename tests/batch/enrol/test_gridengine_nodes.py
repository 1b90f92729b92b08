"""Real machines as execution hosts of a real Grid Engine: they join, are filled by it, and leave.

Everything is done on the site's master, which is a host of its own as far as it can tell.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from encamp.agent.journal import Journal
from encamp.batch.gridengine.host import Host
from encamp.batch.gridengine.site import GridEngineSite
from encamp.batch.install.gridengine import COMPLEXES, NODE_COMPLEX, jsv_text
from encamp.batch.install.gridengine_rules import rules_text
from encamp.describe.environments import find_environment
from encamp.home import Home
from encamp.images.store import ImageStore
from encamp.model.batch import BatchSettings
from encamp.model.errors import Code
from encamp.model.node import NodeState
from encamp.model.recipe import Recipe
from tests.batch.enrol.conftest import describe, wait_until, within
from tests.batch.enrol.demanding import (
    HOST,
    Demand,
    nodes_are_kept_ready_and_none_too_many,
    nodes_come_for_jobs_and_leave,
)
from tests.conftest import ENCAMP, machine_processes
from tests.site.bridging import Wire
from tests.site.siting import Daemon, RunningSite, root_only, running_site

pytestmark = [pytest.mark.site, root_only, pytest.mark.timeout(300)]

SETTINGS = """
bridge:
  name: encamp
  addresses: 10.99.0.100-10.99.0.101/24
  hosts: {master: 10.99.0.1}
"""
NODES = ("tiny-gridengine",)
LOOK = """
import asyncio
from encamp.agent.nodes.keeping import Nodes
from encamp.home import default_home
asyncio.run(Nodes(default_home()).look())
"""
USER = "nobody"


@pytest.fixture(scope="module")
def gridengine() -> Iterator[GridEngineSite]:
    with ExitStack() as held:
        place = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="encamp-")))
        place.chmod(0o755)
        site = held.enter_context(GridEngineSite(place / "site", hosts=1))
        complexes = "\n".join((*COMPLEXES, NODE_COMPLEX, ""))
        site.tell("-Mc", site.run(["qconf", "-sc"]).stdout + complexes)
        rules, verifier = place / "rules", place / "verifier"
        rules.write_text(rules_text(BatchSettings(system="gridengine"), NODES))
        verifier.write_bytes(jsv_text(str(rules)))
        verifier.chmod(0o755)
        site.change("conf", "global", jsv_url=f"script:{verifier}")
        yield site


class Enclosed(Daemon):
    """A daemon in the namespaces of a host. What leads into them is not what is to be killed."""

    def __init__(self, host: Host, daemon: Daemon) -> None:
        super().__init__(daemon.command, daemon.environment, daemon.log)
        self.host = host

    def start(self) -> None:
        self.inner = self.host.start(self.command, log=self.log, variables=self.environment)
        self.process = self.inner.outer

    def kill(self) -> None:
        self.inner.kill()

    def stop(self) -> int:
        return self.inner.stop()


class GridEngineDemand(Demand):
    environment = "tiny-gridengine"

    def __init__(self, site: RunningSite, home: Home, master: Master) -> None:
        super().__init__(site, home)
        self.master = master

    def submit(self, script: str) -> str:
        return self.master.submit(script)

    def waits(self, job: str) -> bool:
        return self.master.state(job) == "qw"

    def node_of(self, job: str) -> str:
        for line in self.master.site.run(["qstat", "-u", "*", "-s", "r"]).stdout.splitlines():
            words = line.split()
            if words[:1] == [job]:
                return words[7].partition("@")[2]
        return ""

    def has_succeeded(self, job: str) -> bool:
        said = self.master.site.run(["qacct", "-j", job], check=False).stdout
        words = [line.split()[:2] for line in said.splitlines()]
        return ["failed", "0"] in words and ["exit_status", "0"] in words

    def known(self) -> list[str]:
        return self.master.hosts()

    def inside(self, node: str, script: str) -> None:
        self.master.encamp("exec", node, "--", "sh", "-c", script)


class Master:
    """The master's host, where machines are made, too."""

    def __init__(self, site: GridEngineSite, home: Home, variables: dict[str, str]) -> None:
        self.site = site
        self.journal = Journal(home)
        self.variables = variables

    def encamp(self, *words: str) -> str:
        return self.site.run([ENCAMP, *words], variables=self.variables).stdout

    def look(self) -> None:
        self.site.run([sys.executable, "-c", LOOK], variables=self.variables)

    def states(self) -> list[NodeState]:
        """Of its nodes, as far as they are there."""
        return [one.node.state for one in self.journal.all() if one.node is not None]

    def look_until_gone(self) -> None:
        def gone() -> bool:
            self.look()
            return not self.journal.all()

        wait_until(gone, "the node to leave")

    def hosts(self) -> list[str]:
        """Those of its execution hosts that are machines."""
        names = self.site.run(["qconf", "-sel"]).stdout.split()
        return [name for name in names if name.startswith("node-")]

    def submit(self, script: str, *words: str) -> str:
        return self.give(script, "-l", "env=tiny-gridengine", *words)

    def give(self, script: str, *words: str) -> str:
        command = ["qsub", "-terse", "-wd", "/tmp", *words]
        return self.site.run_as(USER, command, input=f"#!/bin/sh\n{script}\n").stdout.strip()

    def state(self, job: str) -> str:
        """As `qstat` says it: qw, r, Rr, ...; empty when the job is over."""
        for line in self.site.run(["qstat", "-u", "*"]).stdout.splitlines():
            words = line.split()
            if words[:1] == [job]:
                return words[4]
        return ""


@pytest.fixture
def master(
    gridengine: GridEngineSite,
    site_home: Home,
    site_directory: Path,
    node_trees: Path,
    encamp_environment: dict[str, str],
    nothing_left: None,
) -> Iterator[Master]:
    (site_directory / "settings.yaml").write_text(SETTINGS)
    (site_directory / "batch.yaml").write_text("system: gridengine\n")
    described = describe("tiny-gridengine", "gridengine", node_trees / "gridengine")
    (site_directory / "environments.yaml").write_text(described)
    image = find_environment("tiny-gridengine").image
    assert isinstance(image, Recipe)
    ImageStore(site_home, shared=None).ensure(image)
    variables = {**encamp_environment, "ENCAMP_SITE_CONFIG": str(site_directory)}
    variables["ENCAMP_SYSTEM_HOME"] = os.environ.get("ENCAMP_SYSTEM_HOME", "/nonexistent")
    master = Master(gridengine, site_home, variables)
    # The master must find nodes by their names; they are known beforehand.
    names = gridengine.directory / "hosts"
    before = names.read_text()
    with names.open("a") as file:
        file.write(master.encamp("batch", "names"))
    yield master
    master.encamp("kill-all")
    with names.open("r+") as file:  # It is mounted: the file stays the same.
        file.write(before)
        file.truncate()


def test_job_runs_on_a_node_and_goes_back_to_the_queue_when_that_is_killed(
    master: Master, site_home: Home
) -> None:
    job = master.submit("hostname >/tmp/said; id -un >>/tmp/said; sleep 1000", "-r", "y")
    assert master.state(job) == "qw", "nobody offers that environment yet"
    name = master.encamp("batch", "start", "tiny-gridengine").strip()
    assert name == "node-10-99-0-100"
    assert master.hosts() == [name]
    wait_until(lambda: master.state(job) == "r", "the job")

    def said() -> list[str]:
        return master.encamp("exec", name, "--", "sh", "-c", "cat /tmp/said || :").split()

    wait_until(lambda: len(said()) == 2, "what the job says")
    assert said() == [name, USER]
    # It stays as long as it may be needed.
    master.look()
    assert master.states() == [NodeState.MEMBER]
    (pid,) = machine_processes(site_home)
    os.kill(pid, signal.SIGKILL)
    master.look_until_gone()
    assert master.hosts() == []
    wait_until(lambda: "q" in master.state(job), "the job to be queued again")
    master.site.run(["qdel", job])


def test_host_of_the_site_is_not_taken_for_a_node_that_is_gone(master: Master) -> None:
    start = [str(ENCAMP), "batch", "start", "tiny-gridengine", "--name", "node1"]
    said = master.site.run(start, variables=master.variables, check=False)
    assert said.returncode == Code.WRONG_STATE.value
    assert "Grid Engine has a node node1 already: it is a host of the site's" in said.stderr
    assert master.journal.all() == []
    assert "node1" in master.site.run(["qconf", "-sel"]).stdout.split()


def test_jobs_that_are_not_for_a_node_wait_though_no_other_host_is_free(master: Master) -> None:
    name = master.encamp("batch", "start", "tiny-gridengine").strip()
    tell = partial(master.site.run, check=False)
    tell(["qmod", "-d", "main.q"])
    others = [
        master.give("true"),
        master.give("true", "-l", "env=mini"),
        master.give("true", "-l", "encamp_node=tiny-gridengine"),
    ]
    try:
        for _ in range(2):
            job = master.submit("hostname >/tmp/said")
            wait_until(lambda job=job: master.state(job) == "", "the job")  # type: ignore[misc]
            assert master.encamp("exec", name, "--", "cat", "/tmp/said").strip() == name
            assert [master.state(other) for other in others] == ["qw"] * 3
            # So it is with one that has joined when nobody had to ask for it.
            tell(["qhold", *others])
            tell(["qconf", "-dattr", "exechost", "complex_values", "encamp_node", name])
            offer = "env=tiny-gridengine"
            tell(["qconf", "-mattr", "exechost", "complex_values", offer, name])
            master.look()
            tell(["qrls", *others])
    finally:
        tell(["qdel", *others])
        tell(["qmod", "-e", "main.q"])
    # Whoever had it leave may have been killed on the way.
    tell(["qconf", "-dattr", "hostgroup", "hostlist", name, "@encamp"])
    master.encamp("batch", "leave", name)
    master.look_until_gone()
    assert master.hosts() == []


def test_nodes_come_for_jobs_that_wait_are_kept_ready_and_leave(
    master: Master, site_home: Home, site_directory: Path, tmp_path: Path
) -> None:
    host = master.site.master
    with (
        within(Wire(host.keeper)),
        running_site(tmp_path / "site-of-all", (), start=False) as site,
    ):
        agent = site.add_agent(HOST, site_home.root)
        agent.environment["ENCAMP_SYSTEM_HOME"] = master.variables["ENCAMP_SYSTEM_HOME"]
        site.daemons[HOST] = Enclosed(host, agent)
        demand = GridEngineDemand(site, site_home, master)
        demand.set_up(site_directory)
        nodes_come_for_jobs_and_leave(demand)
        nodes_are_kept_ready_and_none_too_many(demand)
