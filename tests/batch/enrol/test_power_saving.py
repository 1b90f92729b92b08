"""Slurm's own power saving has machines made when jobs need them, and ended when none does."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from encamp.batch.slurm.site import SlurmSite
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
