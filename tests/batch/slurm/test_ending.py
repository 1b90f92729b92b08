"""Which jobs are queued again whose starters are gone: only those that nothing else has ended."""

from __future__ import annotations

import pytest

from encamp.batch.slurm.ending import check_lost
from encamp.batch.system import EndingError
from encamp.model.batch import BatchJob, Task
from encamp.model.errors import EncampError
from tests.batch.slurm.test_reading import entry

JOB = BatchJob(system="slurm", id="17", uid=1000, restarts=1)
SCRIPT = Task(step="batch")
KILLED = {"state": "FAILED", "status": "9"}


def test_a_job_that_has_died_of_its_starters_death_is_lost() -> None:
    check_lost(entry(**KILLED), JOB, SCRIPT, held=False)


@pytest.mark.parametrize(
    "changes",
    [
        *({"state": one} for one in ("CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "PREEMPTED")),
        *({"state": one} for one in ("NODE_FAIL", "DEADLINE", "COMPLETED", "BOOT_FAIL")),
        {"status": "15"},
        {"status": str(9 << 8)},
        {"status": str(137 << 8)},
        {"restarts": "2"},
        {"state": "PENDING", "restarts": "2"},
        {"requeue": "0"},
        {"batch": "0"},
        {"state": "RUNNING", "batch": "0"},
    ],
)
def test_a_job_that_ended_otherwise_stays_as_it_is(changes: dict[str, str]) -> None:
    with pytest.raises(EncampError) as caught:
        check_lost(entry(**(KILLED | changes)), JOB, SCRIPT, held=False)
    assert not caught.value.transient


def test_a_job_is_not_queued_again_for_a_task_of_a_step() -> None:
    with pytest.raises(EncampError) as caught:
        check_lost(entry(state="RUNNING"), JOB, Task(step="0"), held=False)
    assert not caught.value.transient


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", "SUSPENDED"])
def test_nothing_is_decided_before_slurm_says_how_it_ended(state: str) -> None:
    with pytest.raises(EncampError) as caught:
        check_lost(entry(**(KILLED | {"state": state})), JOB, SCRIPT, held=False)
    assert caught.value.transient


def test_a_job_that_is_forgotten_stays_so() -> None:
    with pytest.raises(EncampError, match="does not know") as caught:
        check_lost(None, JOB, SCRIPT, held=False)
    assert not caught.value.transient


@pytest.mark.parametrize("state", ["RUNNING", "SUSPENDED", "STOPPED"])
def test_a_job_is_lost_whose_starters_end_is_held(state: str) -> None:
    """Slurm has not noticed, and nobody has told it to end the job."""
    check_lost(entry(state=state), JOB, SCRIPT, held=True)


@pytest.mark.parametrize("changes", [{"restarts": "2"}, {"requeue": "0"}, {"batch": "0"}])
def test_a_job_stays_though_its_starters_end_is_held(changes: dict[str, str]) -> None:
    with pytest.raises(EncampError) as caught:
        check_lost(entry(**({"state": "RUNNING"} | changes)), JOB, SCRIPT, held=True)
    assert not caught.value.transient


def test_a_job_that_slurm_ends_is_not_lost_while_its_starters_end_is_held() -> None:
    with pytest.raises(EndingError):
        check_lost(entry(state="COMPLETING"), JOB, SCRIPT, held=True)
    with pytest.raises(EncampError) as caught:
        check_lost(entry(state="CANCELLED"), JOB, SCRIPT, held=True)
    assert not caught.value.transient
