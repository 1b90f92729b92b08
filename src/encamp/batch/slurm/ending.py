"""How a job has ended whose starter is gone: by the starter's death alone, or as somebody has
wanted it."""

from __future__ import annotations

import signal

from encamp.batch.slurm.names import may_begin_again
from encamp.batch.slurm.queue import Entry
from encamp.batch.system import EndingError
from encamp.model.batch import BatchJob, Task
from encamp.model.errors import Code, EncampError

GOING = {"RUNNING", "COMPLETING", "CONFIGURING", "RESIZING", "SIGNALING", "STAGE_OUT"}
STANDING = {"RUNNING", "STOPPED", "SUSPENDED"}
GOING |= STANDING
"""States that are not the last one, and those in which nobody has wanted the job to end."""
DIED = "FAILED"
"""What Slurm says of jobs whose script has died. Those that it has ended itself, for whatever
reason, have states of their own."""


def is_queued_again(entry: Entry, job: BatchJob) -> bool:
    return entry.restarts != job.restarts or entry.state == "PENDING"


def check_lost(entry: Entry | None, job: BatchJob, task: Task, *, held: bool) -> None:
    """Raises an error if it is not certain that only the starter was killed, or if the job cannot
    be queued again. `held`: Slurm has not noticed the starter's end."""
    if entry is None:
        raise stays("Slurm does not know the job any more.")
    if not entry.batch or not task.is_script:
        raise stays("Only batch jobs can be queued again.")
    if is_queued_again(entry, job):
        raise stays("The job was queued again by Slurm.")
    is_lost = held and entry.state in STANDING
    if held and entry.state == "COMPLETING":
        # A node whose job does not end in time is closed.
        raise EndingError(f"Slurm is ending job {job.id}.")
    if entry.state in GOING and not is_lost:
        raise EncampError(
            Code.WRONG_STATE, f"Slurm's job {job.id} has not ended yet.", transient=True
        )
    if not is_lost and (entry.state != DIED or entry.status != signal.SIGKILL):
        raise stays(f"Slurm says that the job is {entry.state}.")
    if not may_begin_again(entry):
        raise stays("The job may not be queued again (--no-requeue), and has failed.")


def stays(sentence: str) -> EncampError:
    return EncampError(Code.WRONG_STATE, sentence)
