"""Jobs that real batch systems get back from a starter which no agent answers."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from encamp.batch.gridengine import cell
from encamp.batch.gridengine.site import GridEngineSite
from tests.batch.gridengine.camping import a_person
from tests.batch.slurm.private import Cluster, private_cluster, private_place, root_only
from tests.batch.starter.double import PATIENCE

pytestmark = [pytest.mark.site, root_only]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with private_cluster(nodes=1) as cluster:
        yield cluster


def lonely_script(cluster: Cluster, program: Path) -> Path:
    starter = cluster.place / "encamp-starter"
    shutil.copy(program, starter)
    return cluster.users[0].write("job.sh", f"#!{starter} slurm:mini\n#!/bin/sh\necho ran\n")


def test_slurm_has_its_job_in_the_queue_again(cluster: Cluster, impatient_program: Path) -> None:
    script = lonely_script(cluster, impatient_program)
    job = cluster.submit("-o", "again", script)
    cluster.wait_for(
        "the job's return", lambda: cluster.field(job, "restartcnt") == "1" and cluster.state(job)
    )
    cluster.wait_for_state(job, "PENDING")
    said = (cluster.users[0].directory / "again").read_text()
    assert "The job goes back into the queue." in said
    assert "ran" not in said
    cluster.run("scancel", job)


def test_slurm_has_a_job_in_the_queue_again_that_may_begin_only_once(
    cluster: Cluster, impatient_program: Path
) -> None:
    """It has not begun."""
    script = lonely_script(cluster, impatient_program)
    job = cluster.submit("--no-requeue", "-o", "once", script)
    cluster.wait_for("the job's return", lambda: cluster.field(job, "restartcnt") == "1")
    cluster.wait_for_state(job, "PENDING")
    cluster.wait_for("its word", lambda: cluster.field(job, "requeue") == "0")
    assert "ran" not in (cluster.users[0].directory / "once").read_text()
    cluster.run("scancel", job)


def test_a_job_that_slurm_does_not_queue_again_fails(
    cluster: Cluster, impatient_program: Path
) -> None:
    script = lonely_script(cluster, impatient_program)
    refusing = cluster.users[0].write("scontrol", "#!/bin/sh\nexit 1\n")
    refusing.chmod(0o755)
    job = cluster.submit(f"--export=ALL,PATH={refusing.parent}", "-o", "never", script)
    cluster.wait_for_state(job, "FAILED")
    assert "ExitCode=75:0" in cluster.run("scontrol", "show", "job", job)
    said = (cluster.users[0].directory / "never").read_text()
    assert "could not be put back into the queue: submit it again" in said
    assert "ran" not in said


def test_grid_engine_runs_its_job_again_and_then_holds_it(impatient_program: Path) -> None:
    with (
        private_place() as place,
        a_person(place) as person,
        GridEngineSite(place / "site", hosts=1) as site,
    ):
        starter = place / "encamp-starter-gridengine"
        shutil.copy(impatient_program, starter)
        described = site.run(["qconf", "-sq", "main.q"]).stdout
        site.tell("-Mq", cell.with_values(described, {"starter_method": str(starter)}))
        words = ["qsub", "-terse", "-j", "y", "-o", "out", "-cwd", "-N", "job"]
        job = site.run_as(person.name, words, input="echo ran\n").stdout.strip()

        def state() -> str:
            done: subprocess.CompletedProcess[str] = site.run(["qstat", "-u", "*"])
            lines = [line.split() for line in done.stdout.splitlines()]
            return next((words[4] for words in lines if words[:1] == [job]), "")

        end = time.monotonic() + 2 * PATIENCE
        while "E" not in state():
            assert time.monotonic() < end, f"it is {state()}"
            time.sleep(0.2)
        said = (person.directory / "out").read_text()
        assert said.count("goes back into the queue.") == 1
        assert said.count("is put into error state.") == 1
        assert "ran" not in said
        site.run(["qdel", job])
