"""When the agent never comes, the starter gives the job back by itself."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.batch.starter.double import Door

ABSENT = b"Encamp's agent did not answer on this host for a minute."


@pytest.fixture
def scontrol(tmp_path: Path) -> Path:
    """Notes what it was asked for; fails when there is a file `broken` beside it."""
    program = tmp_path / "scontrol"
    program.write_text(
        '#!/bin/sh\ncd "${0%/*}"; echo "$@" >>asked; test ! -e broken || exit 1\n'
        "echo what a job should not see\n"
    )
    program.chmod(0o755)
    return program


def slurm(scontrol: Path, **variables: str) -> dict[str, str]:
    return {"PATH": f"{scontrol.parent}:/usr/bin:/bin", "SLURM_JOB_ID": "17", **variables}


@pytest.mark.parametrize(
    ("restarts", "verb"), [({}, "requeue"), ({"SLURM_RESTART_COUNT": "3"}, "requeuehold")]
)
@pytest.mark.parametrize("system", ["slurm", "pbs"])
def test_slurm_is_told_to_queue_it_again_or_to_hold_it(
    absent: Door, scontrol: Path, restarts: dict[str, str], verb: str, system: str
) -> None:
    process = absent.start(f"{system}:mini", "--", "true", variables=slurm(scontrol, **restarts))
    assert process.stderr is not None
    assert process.stderr.readline().startswith(b"encamp: " + ABSENT + b" The job goes back")
    while not (asked := scontrol.with_name("asked")).exists():
        assert process.poll() is None
    process.send_signal(signal.SIGCONT)
    process.send_signal(signal.SIGTERM)  # what Slurm does with a job that it has queued again
    code, out, err = absent.finish(process)
    assert (code, out, err) == (-signal.SIGTERM, b"", b"")
    assert asked.read_text() == f"{verb} incomplete 17\n"


def test_task_of_an_array_is_given_back_alone(absent: Door, scontrol: Path) -> None:
    """One of them has the array's own number, which means all."""
    of_array = {"SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3"}
    process = absent.start("slurm:mini", "--", "true", variables=slurm(scontrol, **of_array))
    while not (asked := scontrol.with_name("asked")).exists():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    absent.finish(process)
    assert asked.read_text() == "requeue incomplete 17_3\n"


ASKED_FIRST = ["requeue incomplete 17", "--oneliner show job 17"]


@pytest.mark.parametrize(
    ("requeue", "asked"),
    [
        ("1", ASKED_FIRST),
        (
            "0",
            [
                *ASKED_FIRST,
                "update JobId=17 Requeue=1",
                "requeue incomplete 17",
                "update JobId=17 Requeue=0",
            ],
        ),
    ],
)
def test_job_may_be_queued_again_afterwards_as_before(
    absent: Door, scontrol: Path, requeue: str, asked: list[str]
) -> None:
    """Slurm may refuse also what it lets be queued again."""
    scontrol.write_text(
        '#!/bin/sh\ncd "${0%/*}"; echo "$@" >>asked\n'
        f'case "$*" in requeue*) exit 1;; *show*) echo "JobId=17 Requeue={requeue} x=y";; esac\n'
    )
    process = absent.start("slurm:mini", "--", "true", variables=slurm(scontrol))
    code, _, err = absent.finish(process)
    assert (code, b"submit it again" in err) == (75, True)
    assert scontrol.with_name("asked").read_text().splitlines() == asked


def test_slurm_may_end_all_of_the_job_before_it_has_answered(absent: Door, scontrol: Path) -> None:
    scontrol.write_text('#!/bin/sh\nkill -TERM $$\necho "$@" >"${0%/*}/asked"\n')
    process = absent.start("slurm:mini", "--", "true", variables=slurm(scontrol))
    while not scontrol.with_name("asked").exists():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    code, _, err = absent.finish(process)
    assert code == -signal.SIGTERM
    assert b"goes back into the queue" in err
    assert b"submit it again" not in err


def test_a_job_that_slurm_does_not_take_back_fails(absent: Door, scontrol: Path) -> None:
    scontrol.with_name("broken").touch()
    process = absent.start("slurm:mini", "--", "true", variables=slurm(scontrol))
    code, _, err = absent.finish(process)
    assert code == 75
    assert b"could not be put back into the queue: submit it again." in err


@pytest.mark.parametrize("system", ["pbs", "lsf"])
def test_a_job_of_a_batch_system_that_cannot_be_told_fails(absent: Door, system: str) -> None:
    process = absent.start(f"{system}:mini", "--", "true")
    code, _, err = absent.finish(process)
    assert code == 75
    assert b"submit it again" in err


@pytest.mark.parametrize(("restarted", "code"), [("0", 99), ("1", 100)])
def test_grid_engine_is_told_by_the_exit_code(absent: Door, restarted: str, code: int) -> None:
    process = absent.start("gridengine", "true", variables={"JOB_ID": "5", "RESTARTED": restarted})
    ended, _, err = absent.finish(process)
    assert ended == code
    assert b"encamp: " + ABSENT in err


def test_a_job_that_had_begun_is_looked_at_before_grid_engine_runs_it_again(
    absent: Door,
) -> None:
    absent.open()
    process = absent.start("gridengine", "true", variables={"JOB_ID": "5", "RESTARTED": "0"})
    with absent.accept() as visit:
        visit.answer(b"B")
        absent.close()
    code, _, err = absent.finish(process)
    assert code == 100
    assert b"is put into error state" in err
