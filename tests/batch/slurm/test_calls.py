"""Slurm's own commands, called by jobs in their machines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from encamp.home import Home
from tests.batch.slurm.camping import Camp, a_camp
from tests.batch.slurm.private import User, root_only

pytestmark = [pytest.mark.site, root_only, pytest.mark.timeout(900)]

MINI = "--comment=env:mini"
BOOT = "/proc/sys/kernel/random/boot_id"
OUTSIDE = Path(BOOT).read_text().strip()


@pytest.fixture(scope="module")
def shared(site_home: Home) -> Iterator[Camp]:
    with a_camp(site_home, nodes=2) as camp:
        yield camp


@pytest.fixture
def camp(shared: Camp) -> Iterator[Camp]:
    shared.plug()
    yield shared
    shared.clear()


def test_a_job_asks_and_submits_from_inside(camp: Camp, user: User) -> None:
    user.write("next.sh", f"#!/bin/sh\necho next; cat {BOOT}\n")
    user.write(
        "job.sh",
        f"#!/bin/sh\ncat {BOOT}\nsqueue -h -j $SLURM_JOB_ID -o '%A %T'\ncommand -v squeue\n"
        "printf 'one\\ntwo\\n' | while read word; do squeue -h -j $SLURM_JOB_ID -o $word; done\n"
        "squeue --nonsense; echo $?\n"
        "scontrol update JobId=$SLURM_JOB_ID Comment='env:mini said inside'\n"
        "printf '#!/bin/sh\\necho piped\\n' | sbatch --parsable -o piped.out\n"
        f"exec sbatch --parsable {MINI} -o next.out next.sh\n",
    )
    job = camp.submit(MINI, "job.sh")
    lines = camp.done(job).splitlines()
    assert lines[0] != OUTSIDE
    assert lines[1:5] == [f"{job} RUNNING", "/run/encamp/bin/squeue", "one", "two"]
    assert "unrecognized option '--nonsense'" in lines[5]
    *_, failed, piped, after = lines
    assert failed == "1"
    assert "said inside" in camp.field(job, "comment")
    camp.done(piped)
    assert (user.directory / "piped.out").read_text() == "piped\n"
    camp.done(after)
    text, machine = (user.directory / "next.out").read_text().splitlines()
    assert text == "next"
    assert machine not in (lines[0], OUTSIDE)


def test_srun_has_its_tasks_in_machines_on_all_nodes(camp: Camp, user: User) -> None:
    user.write(
        "job.sh",
        f"#!/bin/sh\nsrun sh -c 'echo $SLURM_PROCID $(cat {BOOT})"
        " $(squeue -h -j $SLURM_JOB_ID -o %T)'\n"
        "echo read | srun -N1 -n1 sh -c 'cat; exit 7'; echo $?\n",
    )
    lines = camp.done(camp.submit(MINI, "-N2", "-n2", "job.sh")).splitlines()
    tasks, machines, states = zip(*(line.split() for line in lines[:2]), strict=True)
    assert sorted(tasks) == ["0", "1"]
    assert len({*machines, OUTSIDE}) == 3
    assert states == ("RUNNING", "RUNNING")
    assert lines[2] == "read"
    assert lines[-1] == "7"


def test_what_a_job_submits_names_its_own_environment_or_none(camp: Camp, user: User) -> None:
    user.write("next.sh", "#!/bin/sh\necho is $ENCAMP_ENVIRONMENT\n")
    user.write(
        "job.sh",
        "#!/bin/sh\nfor comment in env:small env:none other; do\n"
        "sbatch --parsable --comment=$comment -o next.$comment next.sh; done\n",
    )
    jobs = camp.done(camp.submit(MINI, "job.sh")).split()
    assert len(jobs) == 3, jobs
    for job in jobs:
        camp.wait_for_state(job, "COMPLETED")
    said = [
        (user.directory / f"next.{comment}").read_text()
        for comment in ("env:small", "env:none", "other")
    ]
    assert said == ["is small\n", "is\n", "is\n"]


def test_a_script_that_is_named_is_not_looked_for_in_the_input(camp: Camp, user: User) -> None:
    user.write("next.sh", "#!/bin/sh\n:\n")
    user.write(
        "job.sh",
        "#!/bin/sh\nprintf '1\\n2\\n3\\n' | while read one; do"
        " sbatch -Q -o /dev/null -n1 next.sh; echo $one; done\n"
        "printf '#!/bin/sh\\necho $1\\n' | sbatch -W -Q -o piped.out /dev/stdin word\n",
    )
    assert camp.done(camp.submit(MINI, "-n1", "job.sh")).split() == ["1", "2", "3"]
    assert (user.directory / "piped.out").read_text() == "word\n"


def test_without_the_plug_in_srun_says_so_and_runs_nothing(camp: Camp, user: User) -> None:
    camp.plug(yes=False)
    user.write("job.sh", "#!/bin/sh\nsrun touch ran; echo $?\n")
    said = camp.done(camp.submit(MINI, "job.sh"))
    assert "encamp: srun: Slurm's plug-in for Encamp is not set up here" in said
    assert said.endswith("126\n")
    assert not (user.directory / "ran").exists()


def test_a_command_ends_with_the_process_that_called_it(camp: Camp, user: User) -> None:
    user.write(
        "job.sh",
        "#!/bin/sh\nsrun sleep 600 & sleep 0.1\n"
        "until squeue -h -s -j $SLURM_JOB_ID | grep -q sleep; do sleep 0.1; done\n"
        "kill %1; wait %1; echo $?\n"
        "while squeue -h -s -j $SLURM_JOB_ID | grep -q sleep; do sleep 0.1; done\necho over\n",
    )
    assert camp.done(camp.submit(MINI, "job.sh")).endswith("over\n")


def test_nothing_is_left_of_calls_when_a_job_is_cancelled(camp: Camp, user: User) -> None:
    user.write("job.sh", "#!/bin/sh\necho begun\nexec srun sleep 600\n")
    job = camp.submit(MINI, "job.sh")
    camp.wait_for_text(user.directory / f"slurm-{job}.out", "begun")
    camp.wait_for("its step", lambda: f"{job}.0" in camp.run("squeue", "-h", "-s", "-j", job))
    camp.run("scancel", job, user=user)
    camp.done(job, "CANCELLED")
