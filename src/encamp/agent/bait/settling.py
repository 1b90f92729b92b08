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
from encamp.model.batch_record import BatchRecord, Outcome, WayBack
from encamp.model.errors import Code, EncampError

PATIENCE = 600.0
"""Seconds in which a batch system that can be reached has noticed, and tells;"""
ORPHANED = 90.0
"""and in which a starter comes again whose agent is another than before."""
FIRST_DELAY, LONGEST_DELAY = 0.05, 10.0
"""Seconds between two questions; they grow from one to the other,"""
SENT_DELAY = 2.0
"""or to this, of a job that waits in the queue for nothing else;"""
RACING_DELAY = 0.5
"""or to this, of one that is not there yet, and that a batch system which sees its end may forget
within a second."""

VERDICTS = frozenset({Code.WRONG_STATE, Code.INPUT_MISSING, Code.NOT_PERMITTED})
"""What a batch system means to stay so. Whatever else fails says nothing about the job."""

WHY = "its starter was killed"
GONE = "Its starter was ended."
NOT_SEEN = "Its end was not seen."

LOG = logging.getLogger(__name__)

Part = tuple[str, str]
"""A job's id and which of its steps; its script is none. Each has a starter of its own."""


def part_of(job: BatchJob, task: Task) -> Part:
    return job.id, "" if task.is_script else task.step


class Lost:
    """A job whose end was not seen, by its record."""

    def __init__(
        self,
        record: str,
        job: BatchJob,
        task: Task,
        patience: float,
        *,
        is_gone: bool,
        back: WayBack | None = None,
    ) -> None:
        self.record = record
        self.job = job
        self.task = task
        self.part = part_of(job, task)
        self.patience = patience
        self.is_gone = is_gone
        """Its starter is, for certain."""
        self.back = back
        self.is_sent = False
        """It was put back; what is left to do takes its time."""
        self.was_queued = False
        """It was in the queue again, and not only on its way there."""

    def longest_delay(self, *, is_away: bool) -> float:
        """`is_away`: its batch system is, which may forget it as soon as it is back."""
        if self.is_sent:
            return SENT_DELAY
        return RACING_DELAY if is_away or self.back is not None else LONGEST_DELAY


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
        self._lost: dict[str, Lost] = {}
        """By their records, those that are asked about."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._held: Counter[Part] = Counter()
        """What the batch system cannot notice yet that its starter has ended;"""
        self._ending: set[Part] = set()
        """and of those that it is ending itself, and waits for."""
        self.settled: Callable[[str], object] = lambda record: None
        """Is told of each record that is closed here."""

    def begin(self, record: str, job: BatchJob, task: Task) -> None:
        """Its starter is gone for certain."""
        self._ask(Lost(record, job, task, PATIENCE, is_gone=True))

    async def sent(
        self, record: str, job: BatchJob, task: Task, back: WayBack, is_vain: Callable[[], bool]
    ) -> bool:
        """One that was given back, but for something that is left to do. Whether that has come so
        far that its starter may end; the rest is done here."""
        self._ask(Lost(record, job, task, PATIENCE, is_gone=True, back=back))
        while not is_vain():
            lost = self._lost.get(record)
            if lost is None or lost.is_sent:
                return True
            await asyncio.sleep(FIRST_DELAY)
        return False

    def begin_orphan(self, record: BatchRecord) -> None:
        """Nothing more is known of it: its starter may still come."""
        job = BatchJob(
            system=record.system,
            id=record.id,
            uid=record.uid,
            restarts=record.restarts,
            returns=record.returns,
            environment=record.environment,
        )
        task = Task(step=record.step)
        self._ask(Lost(record.key, job, task, ORPHANED, is_gone=False, back=record.back))

    @contextmanager
    def holding(self, job: BatchJob, task: Task) -> Iterator[None]:
        """Meanwhile somebody keeps the end of this one's starter from the batch system."""
        part = part_of(job, task)
        self._held[part] += 1
        try:
            yield
        finally:
            self._held[part] -= 1
            if not self._held[part]:
                del self._held[part]
                self._ending.discard(part)

    def is_in_the_way(self, job: BatchJob, task: Task) -> bool:
        """Is the batch system held up by who keeps that end back?"""
        return part_of(job, task) in self._ending

    def concerns(self, id: str) -> bool:
        """Is it to be decided yet what becomes of this job?"""
        return any(lost.job.id == id for lost in self._lost.values())

    def drop(self, record: str) -> None:
        """Its job is under way again, or done with."""
        self._lost.pop(record, None)
        if (task := self._tasks.pop(record, None)) is not None:
            task.cancel()

    async def close(self) -> None:
        """What is not decided is the next agent's affair."""
        tasks = list(self._tasks.values())
        for record in list(self._tasks):
            self.drop(record)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ask(self, lost: Lost) -> None:
        if lost.record in self._tasks:
            return
        if lost.back is not None:
            self._records.change(lost.record, back=lost.back)
        self._lost[lost.record] = lost
        self._tasks[lost.record] = asyncio.create_task(self._settle(lost))

    async def _settle(self, lost: Lost) -> None:
        job, record = lost.job, lost.record
        end = time.monotonic() + lost.patience
        delay, said, is_away = FIRST_DELAY, "", False
        outcome, reason = Outcome.LOST, NOT_SEEN
        while time.monotonic() < end:
            try:
                outcome, reason = await self._bring_back(lost)
                break
            except EncampError as error:
                if said != error.sentence:
                    said = error.sentence
                    LOG.info("Job %s: %s", job.id, said)
                is_ending = isinstance(error, EndingError)
                if isinstance(error, EndingError) and lost.back is not None:
                    lost.is_sent = True
                    lost.was_queued |= error.queued
                is_held = lost.part in self._held
                if is_ending and is_held:
                    self._ending.add(lost.part)
                if is_ending or error.code is Code.UNREACHABLE:
                    end = time.monotonic() + lost.patience
                is_final = error.code in VERDICTS and not error.transient
                if is_final and (lost.is_gone or lost.back or is_held):
                    outcome, reason = Outcome.KILLED, f"{GONE} {said}"
                    break
                is_away = error.code is Code.UNREACHABLE
            except Exception:
                LOG.exception("It is not known what became of job %s.", job.id)
            await asyncio.sleep(delay)
            delay = min(lost.longest_delay(is_away=is_away), delay * 1.5)
        else:
            reason = f"{NOT_SEEN} {said}".rstrip()
        if lost.was_queued and lost.back is not None and outcome is not lost.back.outcome:
            # It was in the queue, whatever became of it there.
            outcome, reason = lost.back.outcome, f"{lost.back.reason}; {said}"
        LOG.warning("Job %s: %s (%s)", job.id, reason, outcome.value)
        self._records.over(record, outcome, reason=reason, back=None)
        self._tasks.pop(record, None)
        self._lost.pop(record, None)
        self.settled(record)

    async def _bring_back(self, lost: Lost) -> tuple[Outcome, str]:
        """What it has come to, if nothing is left to do for that."""
        system, settings = self._batch()
        job, hold = lost.job, lost.job.has_come_back(settings.restarts)
        if lost.back is None:
            outcome = Outcome.HELD if hold else Outcome.GIVEN_BACK
            held = lost.part in self._held
            left = await self._in_thread(
                lambda: system.bring_back(job, lost.task, f"Encamp: {WHY}", hold=hold, held=held)
            )
            if not left:
                return outcome, WHY
            lost.back = WayBack(left=left, outcome=outcome, reason=WHY)
            self._records.change(lost.record, back=lost.back)
        back = lost.back
        await self._in_thread(
            lambda: system.finish(
                job, back.left, f"Encamp: {back.reason}", hold=back.outcome is Outcome.HELD
            )
        )
        return back.outcome, back.reason
