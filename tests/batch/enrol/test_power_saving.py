"""Slurm's own power saving has machines made when jobs need them, and ended when none does."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from encamp.agent.nodes.keeping import record
from encamp.batch.enrol.opening import open_workers
from encamp.batch.slurm.site import SlurmSite
from encamp.describe.batch_file import load_batch_settings
from encamp.model.node import NodeState
from tests.batch.enrol.conftest import PATIENCE, Host, wait_until
from tests.batch.enrol.test_slurm_nodes import known
from tests.site.siting import root_only

pytestmark = [pytest.mark.site, root_only, pytest.mark.timeout(400)]

NODE = "c1"


def tell_programs(slurm: SlurmSite, **variables: str) -> Path:
    """What Slurm's programs are told, beside what is so here; and where they are."""
    said = {name: value for name, value in os.environ.items() if name.startswith("ENCAMP_")}
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in (said | variables).items()]
    place = slurm.directory.parent
    (place / "variables").write_text("".join(lines))
    return place


@pytest.fixture
def place(slurm_host: Host, slurm: SlurmSite) -> Iterator[Path]:
    """Where Slurm's programs are. There is a node that exists only while it is needed."""
    place = tell_programs(slurm)
    offered = ["State=CLOUD", "CPUs=1", "RealMemory=100", "Feature=tiny-slurm"]
    slurm.run(["scontrol", "create", f"nodename={NODE}", *offered])
    yield place
    slurm.run(["scancel", "-u", "root"])
    slurm.run(["scontrol", "update", f"nodename={NODE}", "state=power_down_force"])
    wait_until(lambda: not slurm_host.keeper.journal.all(), "the end of the machine")
    delete = ["scontrol", "delete", f"nodename={NODE}"]
    wait_until(lambda: slurm.run(delete, check=False).returncode == 0, "the end of the node")


def state(slurm: SlurmSite) -> str:
    said = slurm.run(["scontrol", "-a", "show", "node", NODE]).stdout
    found = re.search(r"State=(\S+)", said)
    assert found is not None
    return found[1]


def test_slurm_has_a_machine_made_for_a_job_and_ended_after_it(
    place: Path, slurm_host: Host, slurm: SlurmSite
) -> None:
    script = "hostname; while ! test -e /tmp/end; do sleep 0.1; done"
    said = place / "job"
    command = ["srun", "-o", str(said), "-C", "tiny-slurm", "sh", "-c", script]
    environment = {**os.environ, **slurm.environment}
    job = subprocess.Popen(slurm.controller.command(command), env=environment)
    try:
        wait_until(lambda: said.exists() and said.read_text() == f"{NODE}\n", "the job")
        (machine,) = slurm_host.keeper.journal.all()
        # Told to end it under its job, nobody does.
        subprocess.run([place / "suspend", NODE], check=True, timeout=PATIENCE)
        assert slurm_host.node(machine) is not None
        slurm_host.inside(machine, "touch /tmp/end")
        assert job.wait(PATIENCE) == 0
    finally:
        job.kill()
        job.wait()
    slurm_host.look_until_gone(machine)
    assert known(slurm) == [NODE], "the node is Slurm's, and stays"
    wait_until(lambda: "POWERED_DOWN" in state(slurm), "Slurm to have it powered down")


def test_slurm_does_not_wait_for_a_machine_that_is_not_ready_in_time(
    place: Path, slurm_host: Host, slurm: SlurmSite, site_directory: Path
) -> None:
    description = site_directory / "environments.yaml"
    never = "tiny-slurm:\n  ready: {timeout: 2s, command: [sh, -c, exit 1]}\n"
    description.write_text(description.read_text().replace("tiny-slurm:\n", never))
    slurm.run(["scontrol", "update", f"nodename={NODE}", "state=power_up"])
    wait_until(lambda: "POWERING_UP" in state(slurm), "Slurm to ask for it")
    wait_until(lambda: "POWERING_UP" not in state(slurm), "Slurm to give it up")
    shown = slurm.run(["scontrol", "-a", "show", "node", NODE]).stdout
    assert "its machine is gone" in shown
    slurm_host.look_until(lambda: not slurm_host.keeper.journal.all())
    wait_until(lambda: "POWERED_DOWN" in state(slurm), "Slurm to have it powered down")


def test_machine_whose_end_nobody_heard_of_ends_all_the_same(
    place: Path, slurm_host: Host, slurm: SlurmSite
) -> None:
    slurm.run(["srun", "-C", "tiny-slurm", "true"])
    wait_until(lambda: slurm_host.members() == [NODE], "the node to be known as one")
    (machine,) = slurm_host.keeper.journal.all()
    (place / "variables").write_text("exit 1\n")
    slurm.run(["scontrol", "update", f"nodename={NODE}", "state=power_down_force"])
    wait_until(lambda: "POWERED_DOWN" in state(slurm), "Slurm to have it powered down")
    tell_programs(slurm)
    assert slurm_host.members() == [NODE]
    slurm_host.look_until_gone(machine)


def test_slurm_is_told_before_the_machine_of_its_node_ends(
    place: Path, slurm_host: Host, slurm: SlurmSite
) -> None:
    """Also if whoever decided that it leaves was killed before it was closed: no job is sent to a
    machine that is gone."""
    slurm.run(["srun", "-C", "tiny-slurm", "true"])
    wait_until(lambda: slurm_host.members() == [NODE], "the node to be known as one")
    (machine,) = slurm_host.keeper.journal.all()
    assert machine.node is not None
    leaving = machine.node.moved(NodeState.LEAVING, time.time(), "somebody asked for it")
    record(slurm_host.keeper.journal, machine, leaving)
    slurm_host.look()
    assert "POWER" in state(slurm)
    slurm_host.look_until_gone(machine)
    wait_until(lambda: "POWERED_DOWN" in state(slurm), "Slurm to have it powered down")
    # Nor if nobody has closed it at all.
    slurm.run(["srun", "-C", "tiny-slurm", "true"])
    wait_until(lambda: slurm_host.members() == [NODE], "the next machine")
    workers = open_workers(load_batch_settings(), "slurm")
    wait_until(lambda: workers.look([NODE])[NODE].jobs == 0, "the end of the job")
    workers.remove(NODE)
    assert "POWER" in state(slurm)
