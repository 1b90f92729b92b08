"""Steps of jobs in real machines: `srun --vmenv=NAME` of ordinary users, on two nodes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from encamp.home import Home
from tests.batch.slurm.camping import Camp, a_camp
from tests.batch.slurm.private import User, root_only

pytestmark = [pytest.mark.site, root_only, pytest.mark.timeout(900)]

VMENV = "--vmenv=mini"
EACH = (VMENV, "-N2", "-n2", "-l")
"""A task on each node, whose lines say which of them has printed them."""
STATE = "$(squeue -h -j $SLURM_JOB_ID -o %T)"
SHOW = "echo $SLURM_PROCID $SLURMD_NODENAME $ENCAMP_ENVIRONMENT $ENCAMP_MACHINE"


@pytest.fixture(scope="module")
def shared(site_home: Home) -> Iterator[Camp]:
    with a_camp(site_home, nodes=2) as camp:
        camp.plug()
        yield camp


def run(camp: Camp, user: User, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Something of the user's, from the command line."""
    return camp.site.run(
        words,
        user=(user.uid, user.gid),
        directory=user.directory,
        variables={"HOME": str(user.directory), "USER": user.name},
        check=False,
        **more,
    )


def told(text: str) -> list[list[str]]:
    """What tasks have said, a list of words each, in their order."""
    return [line.partition(":")[2].split() for line in sorted(text.splitlines())]


def check_shown(text: str) -> None:
    """Two tasks, on both nodes, in a machine each."""
    first, second = told(text)
    assert (first[:3], second[:3]) == (["0", "n1", "mini"], ["1", "n2", "mini"])
    assert first[3] != second[3]


def test_components_with_resources_of_their_own_have_machines(camp: Camp, user: User) -> None:
    task = ("sh", "-c", "echo $ENCAMP_ENVIRONMENT $SLURMD_NODENAME")
    done = run(camp, user, "srun", "-wn1", VMENV, *task, ":", "-wn2", VMENV, *task)
    assert sorted(done.stdout.splitlines()) == ["mini n1", "mini n2"], done


def test_components_of_a_step_have_machines(camp: Camp, user: User) -> None:
    task = f"srun -N1 -wn1 {VMENV} sh -c 'echo one $SLURMD_NODENAME $ENCAMP_ENVIRONMENT'"
    other = f"-N1 -wn2 {VMENV} sh -c 'echo two $SLURMD_NODENAME $ENCAMP_ENVIRONMENT'"
    done = run(camp, user, "salloc", "-Q", "-N2", "sh", "-c", f"{task} : {other}")
    assert sorted(done.stdout.splitlines()) == ["one n1 mini", "two n2 mini"], done


def test_a_step_begins_in_a_directory_whose_name_is_no_text(camp: Camp, user: User) -> None:
    words = f"d=$(printf '\\377'); mkdir $d; cd $d; srun {VMENV} -n2 pwd; cd ..; rmdir $d"
    done = run(camp, user, "sh", "-c", words)
    assert done.stdout.count(f"{user.directory}/\ufffd\n") == 2, done


def test_tasks_on_two_nodes_have_a_machine_each(camp: Camp, user: User) -> None:
    words = f"read line; {SHOW} $line; pwd > in.$SLURM_PROCID; exit $((SLURM_PROCID * 5))"
    done = run(camp, user, "srun", *EACH, "sh", "-c", words, input="what they read\n")
    assert done.returncode == 5, done
    check_shown(done.stdout)
    assert [words[4:] for words in told(done.stdout)] == [["what", "they", "read"]] * 2
    for number in (0, 1):
        assert (user.directory / f"in.{number}").read_text() == f"{user.directory}\n"


def test_tasks_on_one_node_have_a_machine_together(camp: Camp, user: User) -> None:
    """The first ends early; what it leaves is there for the last."""
    words = (
        f"{SHOW}; [ $SLURM_PROCID = 0 ] && echo left > /tmp/left && exit 2\n"
        "while [ ! -s /tmp/left ]; do sleep 0.1; done; cat /tmp/left >&2; exit 4"
    )
    done = run(camp, user, "srun", VMENV, "-O", "-N1", "-n3", "-l", "sh", "-c", words)
    assert done.returncode == 4, done
    shown = told(done.stdout)
    assert [task[0] for task in shown] == ["0", "1", "2"]
    assert len({(node, machine) for _, node, _, machine in shown}) == 1
    assert done.stderr.count("left") == 2
    camp.wait_for("nothing of it", lambda: not camp.left())


def test_a_script_without_environment_has_its_steps_in_machines(camp: Camp, user: User) -> None:
    step = f"srun {' '.join(EACH)} sh -c"
    user.write(
        "job",
        f"#!/bin/sh\n{step} '{SHOW}' > shown\n{step} 'kill -USR1 $$' 2> errors; echo srun: $?\n"
        f"srun {VMENV} -N1 -n1 /nosuch 2>> errors; echo srun: $?\ncat /proc/sys/kernel/hostname\n",
    )
    job = camp.submit("-N2", "-n2", "job")
    assert camp.done(job).splitlines() == ["srun: 138", "srun: 127", "n1"]
    check_shown((user.directory / "shown").read_text())
    assert "/nosuch" in (user.directory / "errors").read_text()


def test_a_step_is_told_of_signals_and_cancelled_in_all_its_machines(
    camp: Camp, user: User
) -> None:
    user.write(
        "job",
        f"#!/bin/sh\nsrun {' '.join(EACH)} sh -c"
        ' \'trap "echo heard > heard.$SLURM_PROCID" USR1\n'
        "echo > up.$SLURM_PROCID; while :; do sleep 0.1; done' 2> errors &\n"
        "wait $!; echo srun: $?\n",
    )
    job = camp.submit("-N2", "-n2", "job")
    for number in (0, 1):
        camp.wait_for_text(user.directory / f"up.{number}")
    assert len(camp.machines()) == 2
    assert run(camp, user, "scancel", "--signal=USR1", f"{job}.0").returncode == 0
    for number in (0, 1):
        camp.wait_for_text(user.directory / f"heard.{number}", "heard")
    assert run(camp, user, "scancel", f"{job}.0").returncode == 0
    # As without machines: what is left of a step is killed.
    assert camp.done(job) == "srun: 137\n"
    camp.wait_for("nothing of it", lambda: not camp.left())


def test_a_step_runs_in_the_machine_of_its_jobs_script(camp: Camp, user: User) -> None:
    """On its node, wherever it was begun; on the other one it has one of its own."""
    text = (
        "echo $ENCAMP_MACHINE > machine; while [ ! -e go ]; do sleep 0.1; done\n"
        "srun -N1 -n1 cat /tmp/left"
    )
    job = camp.submit("--comment=env:mini", "-N2", "-n2", "--wrap", text)
    machine = camp.wait_for_text(user.directory / "machine").strip()
    words = ("srun", f"--jobid={job}", "--overlap", *EACH, "sh", "-c")
    done = run(camp, user, *words, f"{SHOW} {STATE}; echo from $SLURM_PROCID > /tmp/left; exit 3")
    assert done.returncode == 3, done
    check_shown(done.stdout)
    assert told(done.stdout)[0][3] == machine
    assert [task[4] for task in told(done.stdout)] == ["RUNNING"] * 2
    Path(user.directory / "go").touch()
    assert camp.done(job) == "from 0\n"
