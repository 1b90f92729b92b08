"""Whose job a starter belongs to: by the kernel's word, and the batch system's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from encamp.agent.bait.door import refused
from encamp.agent.bait.starter import Visit, is_held, is_there
from encamp.batch.system import BatchSystem
from encamp.model.batch import BatchJob, Task
from encamp.model.errors import Code, EncampError

COUNTED, RESTARTED = "SLURM_RESTART_COUNT", "RESTARTED"
"""Variables in which jobs are told how often they were begun before; or only that they were,"""
OFTEN = 1 << 30
"""which then has to count for so often, since nobody else counts."""

PARTS = "._+"
"""What stands between a job's number and that of its part: a task of an array, or a component that
has resources of its own. Variables may name the whole."""

T = TypeVar("T")


class InThread(Protocol):
    """Has something done that takes a while."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


class NotDescribedError(EncampError):
    """What the batch system says of a job of its own is odd, or missing. That is no fault of the
    job's. `job`, `task`: as far as they are known without."""

    def __init__(self, error: EncampError, job: BatchJob, task: Task) -> None:
        super().__init__(error.code, error.sentence, error.hint, detail=error.detail)
        self.job = job
        self.task = task


def _as_known(visit: Visit, system: BatchSystem, id: str) -> BatchJob:
    """How often it was begun before is its own word, by which it can gain nothing: it goes round a
    few times more, or is held earlier."""
    said = visit.asked.variables.get(COUNTED, "")
    restarts = int(said) if said.isdecimal() and len(said) < 10 else 0
    if visit.asked.variables.get(RESTARTED, "0") not in ("", "0"):
        restarts = OFTEN
    return BatchJob(
        system=system.name, id=id, uid=visit.starter.uid, restarts=restarts, requeue=None
    )


async def identify(visit: Visit, system: BatchSystem, in_thread: InThread) -> tuple[BatchJob, Task]:
    """What the starter itself says is only compared."""
    asked, starter = visit.asked, visit.starter
    if asked.system != system.name:
        raise refused(
            f"The starter was called for '{asked.system}', and this host works with"
            f" '{system.name}'."
        )
    if asked.over and not is_held(asked.over, starter.pid):
        raise refused(f"Process {asked.over} is not held by process {starter.pid}.")
    pid = asked.over or starter.pid
    id, task = await in_thread(lambda: _place_of(pid, visit, system))
    if id is None or not is_there(starter):
        raise refused(
            f"Process {starter.pid} belongs to no job of {system.name} on this host.",
            "Submit it as a job.",
        )
    try:
        job = await in_thread(lambda: system.describe(id))
    except EncampError as error:
        if error.transient:
            raise
        raise NotDescribedError(error, _as_known(visit, system, id), task) from error
    if job.uid != starter.uid:
        raise refused(f"Job {job.id} is not yours.")
    if asked.id and not any(
        known == asked.id or known.startswith(tuple(f"{asked.id}{mark}" for mark in PARTS))
        for known in (id, job.id)
    ):
        raise refused(f"It calls itself job {asked.id[:80]!r}, and is of job {job.id}.")
    return job, task


def _place_of(pid: int, visit: Visit, system: BatchSystem) -> tuple[str | None, Task]:
    """Its job, and which task of that it is. Whoever has begun it may end at any moment: then it is
    in no job any more, and which task it was cannot be told."""
    id = system.job_of(pid)
    if id is None:
        return None, Task()
    task = system.task_of(pid, visit.asked.variables)
    if system.job_of(pid) != id:
        raise EncampError(
            Code.WRONG_STATE,
            f"What process {pid} is of job {id} cannot be told: that is ending.",
            transient=True,
        )
    _ = visit.user  # From now on it is known without asking.
    return id, task


def taken(job: BatchJob, *, transient: bool = False) -> EncampError:
    return EncampError(
        Code.NOT_PERMITTED, f"Job {job.id} has a machine on this host already.", transient=transient
    )
