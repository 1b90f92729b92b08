"""Slurm's plug-in, loaded by real daemons: --vmenv brings a task to the agent's door."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.batch.slurm.private import Cluster, User, private_cluster, root_only
from tests.batch.starter.double import PATIENCE, SOURCES, Door, Process, Visit

pytestmark = [pytest.mark.site, root_only]
BATCH = SOURCES.parent


class Plugged:
    """A private site whose commands know --vmenv, and the door of its only node."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.user: User = cluster.users[0]
        self.starter = cluster.place / "encamp-starter"
        self.plugin = cluster.place / "encamp_spank.so"
        shutil.copy(BATCH / "encamp-starter", self.starter)
        shutil.copy(BATCH / "encamp_spank.so", self.plugin)
        node = cluster.site.nodes[0].daemon.pid
        self.door = Door(self.starter, Path(f"/proc/{node}/root/run/encamp/bait"))
        self.door.open()

    def plug(self, *words: str | Path) -> None:
        """Slurm reads this file each time."""
        stack = self.cluster.site.directory / "etc" / "plugstack.conf"
        stack.write_text(" ".join(["optional", str(self.plugin), *map(str, words)]) + "\n")

    def start(self, *words: str | Path, **more: Any) -> Process:
        """A command of the user's."""
        line = self.cluster.site.controller.command(
            words, user=(self.user.uid, self.user.gid), directory=self.user.directory
        )
        variables = {**os.environ, **self.cluster.site.environment, "HOME": "/", "V": "a b"}
        return self.door.start(program=line, variables=variables, **more)


@pytest.fixture(scope="module")
def site() -> Iterator[Plugged]:
    subprocess.run(["make", "-C", BATCH / "starter"], check=True, capture_output=True)
    subprocess.run(["make", "-C", BATCH / "spank"], check=True, capture_output=True)
    with private_cluster(nodes=1) as cluster:
        plugged = Plugged(cluster)
        try:
            yield plugged
        finally:
            plugged.door.end()


@pytest.fixture
def plugged(site: Plugged) -> Iterator[Plugged]:
    site.plug(site.starter)
    yield site
    site.door.forget()
    site.cluster.clear()


def variables(visit: Visit) -> dict[bytes, bytes]:
    return dict(entry.split(b"=", 1) for entry in visit.fields["m"])


def test_a_task_of_srun_comes_to_the_door_as_its_user(plugged: Plugged) -> None:
    process = plugged.start("srun", "--vmenv=mini", "echo", "a b", "", umask=0o27)
    visit = plugged.door.accept()
    assert (visit.uid, visit.gid) == (plugged.user.uid, plugged.user.gid)
    assert (visit.only("s"), visit.only("e")) == (b"slurm", b"mini")
    assert visit.fields["a"][1:] == [b"a b", b""]
    assert visit.fields["a"][0].rpartition(b"/")[2] == b"echo"
    assert "p" not in visit.fields
    assert visit.only("w") == os.fsencode(plugged.user.directory)
    assert visit.only("u") == (0o27).to_bytes(4, "little")
    found = variables(visit)
    assert (found[b"SLURM_PROCID"], found[b"V"]) == (b"0", b"a b")
    assert visit.only("i") == found[b"SLURM_JOB_ID"]
    visit.answer(b"B")
    os.write(visit.streams[1], b"from the machine\n")
    visit.release_streams()
    visit.ended(7)
    code, out, _ = plugged.door.finish(process)
    assert (code, out) == (7, b"from the machine\n")


def test_tasks_that_do_not_ask_run_as_ever(plugged: Plugged) -> None:
    process = plugged.start("srun", "sh", "-c", "echo plain; exit 3")
    code, out, _ = plugged.door.finish(process)
    assert (code, out) == (3, b"plain\n")


def test_each_task_of_a_step_comes_by_itself(plugged: Plugged) -> None:
    process = plugged.start("srun", "-n2", "--vmenv=mini", "true")
    visits = [plugged.door.accept(), plugged.door.accept()]
    assert sorted(variables(visit)[b"SLURM_LOCALID"] for visit in visits) == [b"0", b"1"]
    for visit in visits:
        visit.answer(b"B")
        visit.release_streams()
        visit.ended(0)
    assert plugged.door.finish(process)[0] == 0


def test_a_script_of_sbatch_comes_with_its_text(plugged: Plugged) -> None:
    script = plugged.user.write("job.sh", "#!/bin/sh\necho never here\n")
    job = plugged.cluster.submit("--vmenv=mini", "-o", "out", script, "x y")
    visit = plugged.door.accept()
    assert visit.uid == plugged.user.uid
    assert visit.only("p") == script.read_bytes()
    assert visit.only("n").endswith(b"/slurm_script")
    assert visit.fields["a"] == [b"x y"]
    assert visit.only("i") == job.encode()
    visit.answer(b"B")
    os.write(visit.streams[1], b"from the machine\n")
    visit.release_streams()
    visit.ended(4)
    assert plugged.cluster.wait_for_state(job, "FAILED")
    assert "ExitCode=4:0" in plugged.cluster.run("scontrol", "show", "job", job)
    assert (plugged.user.directory / "out").read_text() == "from the machine\n"


def test_a_script_that_calls_the_starter_itself_comes_once(plugged: Plugged) -> None:
    text = f"#!{plugged.starter} slurm:other\n#!/bin/sh\ntrue\n"
    job = plugged.cluster.submit("--vmenv=mini", plugged.user.write("own.sh", text))
    visit = plugged.door.accept()
    assert visit.only("e") == b"other"
    assert visit.only("p") == b"#!/bin/sh\ntrue\n"
    visit.ended(0)
    visit.release_streams()
    plugged.cluster.wait_for_state(job, "COMPLETED")


def test_a_script_may_run_plainly_after_all(plugged: Plugged) -> None:
    script = plugged.user.write("plain.sh", "#!/bin/bash\necho $LINENO ${0##*/} $1\n")
    job = plugged.cluster.submit("--vmenv=mini", "-o", "plain", script, "x")
    visit = plugged.door.accept()
    visit.answer(b"P")
    visit.release_streams()
    plugged.cluster.wait_for_state(job, "COMPLETED")
    assert (plugged.user.directory / "plain").read_text() == "2 slurm_script x\n"


def test_steps_of_an_allocation_have_what_it_asked_for(plugged: Plugged) -> None:
    process = plugged.start("salloc", "-Q", "--vmenv=mini", "srun", "true")
    visit = plugged.door.accept()
    assert visit.only("e") == b"mini"
    visit.release_streams()
    visit.ended(5)
    assert plugged.door.finish(process)[0] == 5


@pytest.mark.parametrize("name", ["../x", "a b", "", "x" * 65])
@pytest.mark.parametrize("command", [["srun", "true"], ["sbatch", "--wrap=true"]])
def test_a_hostile_name_is_refused_where_it_is_given(
    plugged: Plugged, command: list[str], name: str
) -> None:
    words = [command[0], f"--vmenv={name}", command[1]]
    code, _, err = plugged.door.finish(plugged.start(*words))
    assert code != 0
    assert b"--vmenv" in err


def test_a_cancelled_task_is_told(plugged: Plugged) -> None:
    process = plugged.start("srun", "-Q", "--vmenv=mini", "sleep", "1000")
    visit = plugged.door.accept()
    visit.answer(b"B")
    plugged.cluster.run("scancel", "--signal=USR1", visit.only("i").decode())
    assert visit.frame() == (b"S", bytes([signal.SIGUSR1]))
    plugged.cluster.run("scancel", visit.only("i").decode())
    told = visit.frame()
    while told == (b"S", bytes([signal.SIGCONT])):
        told = visit.frame()
    assert told == (b"S", bytes([signal.SIGTERM]))
    visit.ended(signal.SIGTERM, signal=True)
    visit.release_streams()
    assert process.wait(PATIENCE) != 0


def test_the_comment_of_a_job_counts_where_the_site_wants_it(plugged: Plugged) -> None:
    comment = "--comment=first, env:mini"
    process = plugged.start("srun", comment, "echo", "plain")
    assert plugged.door.finish(process)[:2] == (0, b"plain\n")
    plugged.plug("comment=yes", plugged.starter)
    process = plugged.start("srun", comment, "true")
    visit = plugged.door.accept()
    assert visit.only("e") == b"mini"
    visit.release_streams()
    visit.ended(6)
    assert plugged.door.finish(process)[0] == 6
    process = plugged.start("srun", comment, "--vmenv=none", "echo", "plain")
    assert plugged.door.finish(process)[:2] == (0, b"plain\n")
    process = plugged.start("srun", "echo", "plain")
    assert plugged.door.finish(process)[:2] == (0, b"plain\n")


def test_a_task_without_a_starter_does_not_run(plugged: Plugged) -> None:
    plugged.plug("/nonexistent/encamp-starter")
    process = plugged.start("srun", "--vmenv=mini", "echo", "plain")
    code, out, err = plugged.door.finish(process)
    assert (code, out) == (75, b"")
    assert b"/nonexistent/encamp-starter cannot be run" in err
