"""What becomes of jobs whose starters are gone, though their ends were not seen. If a starter was
killed, and its batch system did not want that, the job is queued again there. Which of both it was
only the batch system can tell, as soon as it has noticed itself."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from encamp.agent.bait.identity import InThread
from encamp.agent.bait.policy import Records
from encamp.batch.system import BatchSystem, EndingError
from encamp.model.batch import BatchJob, BatchSettings, Task
from encamp.model.batch_record import BatchRecord, Outcome
from encamp.model.errors import Code, EncampError

PATIENCE = 600.0
"""Seconds in which a batch system that can be reached has noticed, and tells;"""
ORPHANED = 90.0
"""and in which a starter comes again whose agent is another than before."""
FIRST_DELAY, LONGEST_DELAY = 0.05, 10.0
"""Seconds between two questions; they grow from one to the other."""

VERDICTS = frozenset({Code.WRONG_STATE, Code.INPUT_MISSING, Code.NOT_PERMITTED})
"""What a batch system means to stay so. Whatever else fails says nothing about the job."""

WHY = "its starter was killed"
GONE = "Its starter was ended."
NOT_SEEN = "Its end was not seen."

LOG = logging.getLogger(__name__)


class Settling:
    """`batch`: the batch system, and how this host works with it, as they are at the moment."""

    def __init__(
        self,
        records: Records,
        in_thread: InThread,
        batch: Callable[[], tuple[BatchSystem, BatchSettings]],
    ) -> None:
        self._records = records
        self._in_thread = in_thread
        self._batch = batch
        self._jobs: dict[str, str] = {}
        """By their records, the ids of those that are asked about."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._held: Counter[str] = Counter()
        """Ids of jobs whose starters' ends the batch system cannot notice yet;"""
        self._ending: set[str] = set()
        """and of those that it is ending itself, and waits for."""
        self.settled: Callable[[str], object] = lambda record: None
        """Is told of each record that is closed here."""

    def begin(self, record: str, job: BatchJob, task: Task) -> None:
        """Its starter is gone for certain."""
        self._ask(record, job, task, PATIENCE, is_gone=True)

    def finish(self, record: str, job: BatchJob, task: Task, outcome: Outcome, reason: str) -> None:
        """It was given back, but for what is left to do when its starter has ended."""
        self._ask(record, job, task, PATIENCE, is_gone=True, given_back=(outcome, reason))

    def begin_orphan(self, record: BatchRecord) -> None:
        """Nothing more is known of it: its starter may still come."""
        job = BatchJob(
            system=record.system,
            id=record.id,
            uid=record.uid,
            restarts=record.restarts,
            environment=record.environment,
        )
        self._ask(record.key, job, Task(step=record.step), ORPHANED, is_gone=False)

    @contextmanager
    def holding(self, id: str) -> Iterator[None]:
        """Meanwhile somebody keeps the end of this job's starter from the batch system."""
        self._held[id] += 1
        try:
            yield
        finally:
            self._held[id] -= 1
            if not self._held[id]:
                del self._held[id]
                self._ending.discard(id)

    def is_in_the_way(self, id: str) -> bool:
        """Is the batch system held up by who keeps that end back?"""
        return id in self._ending

    def concerns(self, id: str) -> bool:
        """Is it to be decided yet what becomes of this job?"""
        return id in self._jobs.values()

    def drop(self, record: str) -> None:
        """Its job is under way again, or done with."""
        self._jobs.pop(record, None)
        if (task := self._tasks.pop(record, None)) is not None:
            task.cancel()

    async def close(self) -> None:
        """What is not decided is the next agent's affair."""
        tasks = list(self._tasks.values())
        for record in list(self._tasks):
            self.drop(record)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ask(
        self,
        record: str,
        job: BatchJob,
        task: Task,
        patience: float,
        *,
        is_gone: bool,
        given_back: tuple[Outcome, str] | None = None,
    ) -> None:
        if record in self._tasks:
            return
        self._jobs[record] = job.id
        settling = self._settle(record, job, task, patience, is_gone, given_back)
        self._tasks[record] = asyncio.create_task(settling)

    async def _settle(
        self,
        record: str,
        job: BatchJob,
        task: Task,
        patience: float,
        is_gone: bool,
        given_back: tuple[Outcome, str] | None,
    ) -> None:
        end = time.monotonic() + patience
        delay, said = FIRST_DELAY, ""
        outcome, reason = Outcome.LOST, NOT_SEEN
        while time.monotonic() < end:
            try:
                outcome, reason = await self._bring_back(job, task), WHY
                break
            except EncampError as error:
                if said != error.sentence:
                    said = error.sentence
                    LOG.info("Job %s: %s", job.id, said)
                is_ending = isinstance(error, EndingError)
                if is_ending and job.id in self._held:
                    self._ending.add(job.id)
                if is_ending or error.code is Code.UNREACHABLE:
                    end = time.monotonic() + patience
                is_final = error.code in VERDICTS and not error.transient
                if is_final and (is_gone or job.id in self._held):
                    outcome, reason = Outcome.KILLED, f"{GONE} {said}"
                    break
            except Exception:
                LOG.exception("It is not known what became of job %s.", job.id)
            await asyncio.sleep(delay)
            delay = min(LONGEST_DELAY, delay * 1.5)
        else:
            reason = f"{NOT_SEEN} {said}".rstrip()
        outcome, reason = given_back or (outcome, reason)
        LOG.warning("Job %s: %s (%s)", job.id, reason, outcome.value)
        self._records.over(record, outcome, reason=reason)
        self._tasks.pop(record, None)
        self._jobs.pop(record, None)
        self.settled(record)

    async def _bring_back(self, job: BatchJob, task: Task) -> Outcome:
        system, settings = self._batch()
        hold = job.restarts >= settings.restarts
        held = job.id in self._held
        await self._in_thread(
            lambda: system.bring_back(job, task, f"Encamp: {WHY}", hold=hold, held=held)
        )
        return Outcome.HELD if hold else Outcome.GIVEN_BACK
