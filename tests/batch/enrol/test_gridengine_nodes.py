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
from pathlib import Path

import pytest

from encamp.agent.journal import Journal
from encamp.batch.gridengine.site import GridEngineSite
from encamp.describe.environments import find_environment
from encamp.home import Home
from encamp.images.store import ImageStore
from encamp.model.node import NodeState
from encamp.model.recipe import Recipe
from tests.batch.enrol.conftest import describe, wait_until
from tests.conftest import ENCAMP, machine_processes
from tests.site.siting import root_only

pytestmark = [pytest.mark.site, root_only, pytest.mark.timeout(300)]

SETTINGS = """
bridge:
  name: encamp
  addresses: 10.99.0.100-10.99.0.101/24
  hosts: {master: 10.99.0.1}
"""
COMPLEX = "env env RESTRING == YES NO NONE 0\n"
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
        site.tell("-Mc", site.run(["qconf", "-sc"]).stdout + COMPLEX)
        yield site


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
        command = ["qsub", "-terse", "-wd", "/tmp", "-l", "env=tiny-gridengine", *words]
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


def test_machine_joins_is_filled_and_leaves_when_idle(master: Master) -> None:
    waiting = master.submit("hostname; id -un", "-o", "/tmp/said", "-j", "y")
    assert master.state(waiting) == "qw", "nobody offers that environment yet"
    name = master.encamp("batch", "start", "tiny-gridengine").strip()
    assert name == "node-10-99-0-100"
    assert master.hosts() == [name]
    wait_until(lambda: not master.state(waiting), "the job")
    said = master.encamp("exec", name, "--", "cat", "/tmp/said")
    assert said.split() == [name, USER]
    # It stays as long as it may be needed, and leaves then.
    master.look()
    assert master.states() == [NodeState.MEMBER]
    master.encamp("batch", "leave", name, "--wait")
    assert master.states() == []
    assert master.hosts() == []


def test_node_that_is_to_leave_waits_for_its_job(master: Master) -> None:
    name = master.encamp("batch", "start", "tiny-gridengine").strip()
    job = master.submit("while ! test -e /tmp/end; do sleep 0.1; done")
    wait_until(lambda: master.state(job) == "r", "the job")
    master.encamp("batch", "leave", name)
    master.look()
    assert master.states() == [NodeState.LEAVING]
    # However often one looks: it stays, and gets no other job.
    other = master.submit("true")
    for _ in range(3):
        master.look()
    assert master.state(job) == "r"
    assert master.state(other) == "qw"
    assert master.hosts() == [name]
    master.encamp("exec", name, "--", "touch", "/tmp/end")
    master.look_until_gone()
    assert master.state(job) == ""
    assert master.hosts() == []
    master.site.run(["qdel", other])


def test_job_of_a_node_that_is_killed_goes_back_to_the_queue(
    master: Master, site_home: Home
) -> None:
    master.encamp("batch", "start", "tiny-gridengine")
    job = master.submit("sleep 1000", "-r", "y")
    wait_until(lambda: master.state(job) == "r", "the job")
    (pid,) = machine_processes(site_home)
    os.kill(pid, signal.SIGKILL)
    master.look_until_gone()
    assert master.hosts() == []
    wait_until(lambda: "q" in master.state(job), "the job to be queued again")
    master.site.run(["qdel", job])
