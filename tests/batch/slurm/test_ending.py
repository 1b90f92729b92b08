"""Which jobs are queued again whose starters are gone: only those that nothing else has ended."""

from __future__ import annotations

from typing import cast

import pytest

from encamp.batch.slurm.calls import Calls
from encamp.batch.slurm.ending import check_lost
from encamp.batch.slurm.names import ONCE
from encamp.batch.slurm.queue import Entry
from encamp.batch.slurm.returning import Returning
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
        {"admin_comment": f"env=mini; encamp: no machine; {ONCE}"},
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


class Played(Returning):
    """A job that goes through these states, one at each look."""

    def __init__(self, *states: Entry | None) -> None:
        self.states = list(states)
        self.called: list[str] = []
        called = lambda name, *words, purpose: self.called.append(words[0])  # noqa: E731
        super().__init__(cast("Calls", called), self._see)

    def _see(self, id: str) -> Entry | None:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def begin_soon(self, id: str) -> None:
        pass


STANDS, DIED = entry(state="RUNNING", restarts="1"), entry(**KILLED, restarts="1")
AGAIN = entry(state="PENDING", restarts="2")


@pytest.mark.parametrize(
    ("states", "called"),
    [
        # Before the first look, the job's own word is that it stands.
        ([STANDS, STANDS, AGAIN], ["update", "requeue"]),
        ([STANDS, STANDS, entry(state="COMPLETING", restarts="1"), AGAIN], ["update", "requeue"]),
        # Slurm has noticed before, and passed over what it was asked.
        ([STANDS, STANDS, DIED], ["update", "requeue", "requeue", "update"]),
        ([DIED], ["requeue", "update"]),
        ([AGAIN], []),
    ],
)
def test_job_whose_end_is_noticed_while_it_is_queued_again_comes_back_all_the_same(
    states: list[Entry | None], called: list[str]
) -> None:
    played = Played(*states)
    for _ in range(10):
        try:
            played.finish(JOB, "it stands", "why", hold=False)
            break
        except EndingError:
            pass
    assert played.called == called


@pytest.mark.parametrize("state", ["CANCELLED", "TIMEOUT", "COMPLETED"])
def test_job_that_was_ended_while_it_is_queued_again_stays_ended(state: str) -> None:
    played = Played(entry(state=state, restarts="1"))
    with pytest.raises(EncampError, match=state) as caught:
        played.finish(JOB, "it stands", "why", hold=False)
    assert (caught.value.transient, played.called) == (False, [])


def test_job_waits_no_longer_than_it_has_to_when_slurm_has_looked_at_it() -> None:
    """Before, nobody knows what it waits for."""
    waits = (("COMPLETING", "None"), ("PENDING", "None"), ("PENDING", "BeginTime"))
    played = Played(*(entry(state=state, reason=reason) for state, reason in waits))
    assert [played._begin_now("17") for _ in waits] == [False, False, True]
    assert played.called == ["update"]
    played = Played(entry(state="PENDING", reason="Resources"))
    assert (played._begin_now("17"), played.called) == (True, [])
