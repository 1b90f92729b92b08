"""Which tasks of a job run in a machine that the job has on this host already: those of its steps
in the machine of its script, if both are in the same environment; else those of a step in the
machine that was made for the step."""

from __future__ import annotations

import asyncio
import time

from encamp.agent.bait.door import refused
from encamp.agent.bait.remembering import Former, Formers
from encamp.agent.bait.starter import GoneError, Visit, is_there
from encamp.model.batch import BatchJob, Task
from encamp.model.errors import Code, EncampError

MOST_MACHINES = 64
"""Of one job on a host, if it is not known how many processors it was granted;"""
MOST_TASKS = 120
"""and tasks in one of them. The guest program has some more commands at a time."""
ENDING = 30.0
"""Seconds in which a machine is gone in which nothing is run any more."""
LOOK = 0.1
"""Seconds between two looks at a machine that is being made or ended."""


class Joining:
    def __init__(self, formers: Formers) -> None:
        self._formers = formers

    async def host_of(
        self, visit: Visit, job: BatchJob, task: Task, environment: str
    ) -> Former | None:
        """Who has made the machine that it joins. It waits until that runs what it was made for;
        None: there is none, or no more."""
        while (host := self._found(job, task, environment)) is not None:
            if host.began and host.ended is None:
                break
            if visit.is_gone():
                raise GoneError
            await asyncio.sleep(LOOK)
            if host.over.is_set() and not host.began:
                raise EncampError(
                    Code.MACHINE_LOST,
                    f"The machine that it was to join did not come up: {host.carried.failure}",
                    transient=True,
                )
        if host is None:
            await self._until_ended(visit, job)
        self._check_count(job, joins=host is not None)
        return host

    def _found(self, job: BatchJob, task: Task, environment: str) -> Former | None:
        """Of the same run of the same job, by the batch system's word."""
        if task.is_script:
            return None
        of_step = None
        for former in self._formers.of_job(job.id):
            errand = former.errand
            if errand.host or errand.environment != environment:
                continue
            if (errand.job.uid, errand.job.restarts) != (job.uid, job.restarts):
                continue
            if errand.task.is_script and is_there(errand.starter):
                return former
            if errand.tasks and errand.task.step == task.step:
                of_step = former
        return of_step

    async def _until_ended(self, visit: Visit, job: BatchJob) -> None:
        """A step may begin as soon as another has ended, whose machine is there for a moment
        longer."""
        end = time.monotonic() + ENDING
        while (
            self._count(job, joins=False) >= _most(job)
            and any(map(self._is_ending, self._formers.of_job(job.id)))
            and time.monotonic() < end
        ):
            if visit.is_gone():
                raise GoneError
            await asyncio.sleep(LOOK)

    def _is_ending(self, former: Former) -> bool:
        """Is nothing run any more in the machine that it has made?"""
        errand = former.errand
        if not errand.tasks or errand.host:
            return not errand.host and former.ended is not None
        inside = (one.errand.host for one in self._formers.of_job(errand.job.id))
        return former.began and errand.record not in inside

    def _count(self, job: BatchJob, *, joins: bool) -> int:
        return sum(bool(one.errand.host) == joins for one in self._formers.of_job(job.id))

    def _check_count(self, job: BatchJob, *, joins: bool) -> None:
        count = self._count(job, joins=joins)
        if joins and count >= MOST_TASKS:
            raise refused(f"Job {job.id} has {MOST_TASKS} tasks in machines on this host.")
        if not joins and count >= _most(job):
            raise refused(f"Job {job.id} has as many machines on this host as processors.")


def _most(job: BatchJob) -> int:
    """Machines on a host."""
    return max(1, job.cpus or MOST_MACHINES)
