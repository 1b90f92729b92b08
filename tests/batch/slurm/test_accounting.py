"""Where Slurm holds jobs together by control groups, their machines are in them: measured, limited
and ended as the job is."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from encamp.home import Home
from tests.batch.slurm.camping import Camp, a_camp
from tests.batch.slurm.private import User, root_only

pytestmark = [
    pytest.mark.site,
    root_only,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not Path("/sys/fs/cgroup/freezer").exists(), reason="there is no group that freezes"
    ),
]

MINI = "--comment=env:mini"
BUSY = "#!/bin/sh\ni=0\nwhile [ $i -lt 40000 ]; do i=$((i+1)); done\necho > warm\nsleep 1000\n"


@pytest.fixture(scope="module")
def shared(site_home: Home) -> Iterator[Camp]:
    name = f"g{os.getpid()}"
    with a_camp(site_home, nodes=(name,), control_groups=True) as camp:
        yield camp


@pytest.fixture
def user(camp: Camp) -> User:
    camp.users[0].write("busy", BUSY)
    return camp.users[0]


def seconds(text: str) -> float:
    """Of 00:01:02.500."""
    total = 0.0
    for part in text.split(":"):
        total = total * 60 + float(part)
    return total


def test_a_machine_is_measured_frozen_and_ended_with_its_job(camp: Camp, user: User) -> None:
    job = camp.submit(MINI, "busy")
    camp.wait_for_text(user.directory / "warm", "\n")
    (machine,) = camp.machines()
    node = camp.site.nodes[0].name
    mine = f"/slurm_{node}/uid_{user.uid}/job_{job}/step_batch"
    assert mine in Path(f"/proc/{machine}/cgroup").read_text()

    def used() -> float:
        said = camp.run("sstat", "-n", "-P", "-j", f"{job}.batch", "-o", "AveCPU")
        return seconds(said.strip() or "0")

    camp.wait_for("processor time that Slurm has seen", lambda: used() >= 1)

    camp.run("scontrol", "suspend", job)
    camp.wait_for_state(job, "SUSPENDED")

    def ticks() -> int:
        text = Path(f"/proc/{machine}/stat").read_text().rpartition(")")[2].split()
        return int(text[11]) + int(text[12])

    seen = camp.wait_until_still("a machine", ticks)
    camp.run("scontrol", "resume", job)
    camp.wait_for("a machine that goes on", lambda: ticks() > seen)

    camp.run("scancel", job, user=user)
    camp.wait_for_state(job, "CANCELLED")
    camp.wait_for("no machine", lambda: not Path(f"/proc/{machine}").exists())
    assert camp.site.nodes[0].state() == "idle"


def test_a_job_whose_machine_dies_is_given_back_here_too(camp: Camp, user: User) -> None:
    user.write("again", "#!/bin/sh\necho ${SLURM_RESTART_COUNT:-0} >> runs\nsleep 1000\n")
    job = camp.submit(MINI, "again")
    camp.wait_for_text(user.directory / "runs", "0")
    (machine,) = camp.machines()
    os.kill(machine, signal.SIGKILL)
    camp.wait_for_text(user.directory / "runs", "1")
    assert "; encamp: " in camp.field(job, "admin_comment")


def test_a_machine_stays_for_its_owners_next_job_and_ends_with_one_that_is_cancelled(
    camp: Camp, user: User
) -> None:
    words = ("--comment=env:again", "--wrap")
    (mine,) = camp.done(camp.submit(*words, "echo $ENCAMP_MACHINE")).split()
    (machine,) = camp.machines()
    assert "/job_" not in Path(f"/proc/{machine}/cgroup").read_text()
    job = camp.submit(*words, "echo $ENCAMP_MACHINE > runs; sleep 1000")
    assert camp.wait_for_text(user.directory / "runs").strip() == mine
    assert f"/job_{job}/" in Path(f"/proc/{machine}/cgroup").read_text()
    camp.run("scancel", job, user=user)
    camp.wait_for_state(job, "CANCELLED")
    camp.wait_for("no machine", lambda: not camp.machines())
