"""What becomes of a starter that has come to the door: who it is, which environment its job gets,
whether there is room, and who carries the job out. A job that cannot be run here goes back to its
batch system."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from encamp.agent.bait import frames
from encamp.agent.bait.beginning import Beginning
from encamp.agent.bait.choosing import choose_environment
from encamp.agent.bait.door import described, refused
from encamp.agent.bait.errand import KILLED, Fault, told_of
from encamp.agent.bait.failing import Action, after_failure
from encamp.agent.bait.identity import NotDescribedError, identify, taken
from encamp.agent.bait.joining import Joining
from encamp.agent.bait.policy import Failing, Records
from encamp.agent.bait.remembering import Former, Formers, Key
from encamp.agent.bait.settling import VERDICTS, Settling
from encamp.agent.bait.starter import GoneError, Starter, Visit, began_at, is_there
from encamp.agent.commands.directory import OWN
from encamp.agent.commands.supervising import Commands
from encamp.agent.commands.tracked import Tracked
from encamp.batch.system import BatchSystem
from encamp.describe.environments import find_environment
from encamp.model.batch import BatchJob, BatchSettings, Task
from encamp.model.batch_record import ENDED, BatchRecord, Outcome, WayBack
from encamp.model.errors import Code, EncampError

SETTLED = 20.0
"""Seconds in which what carried a job out before is gone."""
SOON, LATER = 2.0, 10.0
"""Seconds after which one comes again for whom nothing could be done now; and if that is likely to
stay so."""
MOST_ASKED = 15
"""How often the batch system is asked about a job that has begun and was lost."""
THREADS = 16
CLOCKS = 0.5
"""Seconds that two clocks may differ by."""

LONGEST_PAUSE = 60.0
"""Seconds for which one waits here whose environment is left alone, before it goes back."""
LOOK = 0.5
"""Seconds between two looks at whether that is over, or the starter gone."""

POISON = frozenset({Code.UNKNOWN_ENVIRONMENT, Code.NOT_PERMITTED, Code.USAGE})
"""What will not change by trying again, here or elsewhere: the job is held."""

GONE = frozenset({Code.INPUT_MISSING, Code.WRONG_STATE})
"""It is known that the job is not here any more: what became of it can be found out without more
being known of it."""

LOG = logging.getLogger(__name__)

T = TypeVar("T")


class Taking:
    """`failing`, `records`: what is kept of it by others. `probed`: whether a command of the
    agent's own is none of a job's."""

    def __init__(
        self,
        commands: Commands,
        system: BatchSystem,
        settings: BatchSettings,
        failing: Failing,
        records: Records,
        probed: Callable[[Tracked], bool] = lambda tracked: False,
    ) -> None:
        self._system = system
        self._settings = settings
        self._failing = failing
        self._records = records
        self._settling = Settling(records, self._in_thread, self._batch)
        self._formers = Formers(commands, failing, records, self._settling, probed)
        self._joining = Joining(self._formers)
        self._beginning = Beginning(commands, self._formers, records, self._in_thread, self._batch)
        self._busy: dict[Key, Starter] = {}
        """Jobs whose starters are being dealt with."""
        self._threads = ThreadPoolExecutor(THREADS, "bait")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def change(self, system: BatchSystem, settings: BatchSettings) -> None:
        """For those who come from now on."""
        self._system, self._settings = system, settings

    def _batch(self) -> tuple[BatchSystem, BatchSettings]:
        return self._system, self._settings

    async def watch(self) -> None:
        """Until cancelled."""
        try:
            await self._formers.watch()
        finally:
            await self._beginning.close()

    async def take(self, visit: Visit) -> None:
        try:
            job, task = await identify(visit, self._system, self._in_thread)
            key = job.id, task.step, task.number
            if visit.asked.over:
                await self._over(visit, job, task)
                return
            busy = self._busy.setdefault(key, visit.starter)
            if busy is not visit.starter:
                raise taken(job, transient=busy == visit.starter)
            try:
                await self._take(visit, job, task)
            finally:
                del self._busy[key]
        except NotDescribedError as error:
            if visit.asked.over and error.code in GONE:
                await self._over(visit, error.job, error.task)
            elif visit.asked.over:
                LOG.warning("It is not known what job %s is: %s", error.job.id, error.sentence)
                await visit.say(frames.again(SOON, error.sentence))
            else:
                await self._not_described(visit, error)
        except EncampError as error:
            if not error.transient:
                raise
            who = await self._in_thread(lambda: described(visit))
            LOG.warning("%s has to come again: %s", who, error.sentence)
            await visit.say(frames.again(SOON, error.sentence))

    async def _take(self, visit: Visit, job: BatchJob, task: Task) -> None:
        asked, starter = visit.asked, visit.starter
        user, settings = visit.user, self._settings
        former = await self._former(visit, job, task)
        if former is not None and former.errand.starter != starter:
            former = None  # Of an earlier run of the job.
        if asked.lost:
            await self._lost(visit, job, task, former)
            return
        name = await self._in_thread(
            lambda: choose_environment(asked.environment, job, settings, user)
        )
        offered = settings.environments
        if offered and asked.environment and name not in offered:
            raise refused(
                f"Environment '{name}' is not for jobs of {self._system.name} here.",
                f"They can have {', '.join(offered)}.",
            )
        if not name:
            await visit.say(frames.plain())
            return
        host = await self._joining.host_of(visit, job, task, name)
        paused = "" if host else await self._paused(visit, job, name)
        if paused or asked.tries:
            verdict = after_failure(
                job, self._settings, begun=False, tries=asked.tries, paused=bool(paused)
            )
            if verdict.action is not Action.AGAIN:
                why = paused or (former.carried.failure if former is not None else "")
                why = why or "no machine for it came up on this host"
                await self._give_back(
                    visit, job, task, name, why, hold=verdict.action is Action.HOLD, host=host
                )
                return
        try:
            environment = await self._in_thread(lambda: find_environment(name))
            await self._beginning.begin(visit, job, task, environment, user, host)
        except EncampError as error:
            await self._not_begun(visit, job, task, name, error, host)

    async def _paused(self, visit: Visit, job: BatchJob, name: str) -> str:
        """Why it may not be tried; empty: it may. A host that takes other jobs would be sent this
        one again at once, until it is held: so it waits here for a part of the pause."""
        settings = self._settings
        end = time.monotonic() + min(LONGEST_PAUSE, settings.pause / (settings.restarts + 1))
        while paused := self._failing.may_try(name, job.uid, time.time()):
            if time.monotonic() >= end or name in self._failing.closing(time.time()):
                return paused
            await asyncio.sleep(LOOK)
            if visit.is_gone():
                raise GoneError
        return ""

    async def _over(self, visit: Visit, job: BatchJob, task: Task) -> None:
        """Its starter was killed, and its batch system cannot notice as long as who has come waits
        here. Nobody may have heard of the job yet."""
        key = job.id, task.step, task.number
        with self._settling.holding(job, task):
            if not self._formers.concerns(key):
                run = await self._run_of(job, visit.asked.over)
                is_done = run is not None and run.outcome in ENDED
                if not is_done and not self._formers.concerns(key):
                    name = visit.asked.environment or job.environment
                    # One that was given back may not have got there.
                    record = self._new_record(visit, job, task, name) if run is None else run.key
                    self._settling.begin(record, job, task)

            def is_vain() -> bool:
                return visit.is_gone() or self._settling.is_in_the_way(job, task)

            decided = await self._formers.decided(key, is_vain)
            let_go = decided or self._settling.is_in_the_way(job, task)
        # What it comes to is found out without whoever has come.
        await visit.say(frames.plain() if let_go else frames.again(SOON, ""))

    async def _not_described(self, visit: Visit, error: NotDescribedError) -> None:
        """It comes again, in the hope of a better answer; then it goes back, if it has not begun:
        only its batch system could tell whether it may be begun twice."""
        job, task = error.job, error.task
        begun, tries = visit.asked.lost, visit.asked.tries + 1
        verdict = after_failure(job, self._settings, begun=False, tries=tries)
        LOG.warning("It is not known what job %s is: %s", job.id, error.sentence)
        if verdict.action is Action.AGAIN or (begun and tries < MOST_ASKED):
            await visit.say(frames.again(verdict.delay or SOON, str(error)))
        elif begun:
            why = f"the batch system does not tell what it is: {error.sentence}"
            self._records_of(visit, job, task, "", Outcome.FAILED, why)
            sentence = f"Job {job.id} was lost, and may not be begun a second time: {why}"
            await visit.say(frames.failed(Code.MACHINE_LOST.value, sentence))
        else:
            hold = verdict.action is Action.HOLD
            await self._give_back(visit, job, task, "", error.sentence, hold=hold)

    # ── what was before ──────────────────────────────────────────────────────────────────────────

    async def _former(self, visit: Visit, job: BatchJob, task: Task) -> Former | None:
        """What became of the last try, once nothing is left of that. One that is under way for
        somebody else is not disturbed."""
        key = job.id, task.step, task.number
        for former in self._formers.under_way(key):
            its = former.errand.starter
            if its != visit.starter and is_there(its):
                raise taken(job)
            # The starter is here, or gone: nobody needs it any more.
            if not await self._formers.ended(former, SETTLED):
                raise EncampError(
                    Code.WRONG_STATE,
                    f"What carried job {job.id} out before is not gone yet.",
                    transient=True,
                )
        return self._formers.last(key)

    async def _run_of(self, job: BatchJob, starter: int) -> BatchRecord | None:
        """The run of the job that this starter has brought, if it is over."""
        since = began_at(starter) - CLOCKS
        return await self._in_thread(lambda: self._records.run_of(job, since))

    async def _lost(self, visit: Visit, job: BatchJob, task: Task, former: Former | None) -> None:
        """It had begun. Either it is known how it ended, or it must not be begun again here."""
        code = None if former is None else former.ended
        if former is None and task.is_script:
            run = await self._run_of(job, visit.starter.pid)
            code = None if run is None else run.exit_code
            if run is not None and run.signal is not None:
                code = KILLED + run.signal
        if code is not None:
            await visit.say(
                frames.ended(signal=code - KILLED) if code >= KILLED else frames.ended(code=code)
            )
            return
        name = former.errand.environment if former is not None else ""
        why = "the machine that it ran in was lost"
        if former is not None and former.carried.queued:
            why = former.carried.failure
            # What the batch system says now counts the next run already.
            before = former.errand.job
            job = msgspec.structs.replace(job, restarts=before.restarts, returns=before.returns)
        elif former is not None and former.carried.failure:
            why = f"{why}: {former.carried.failure}"
        if former is not None and former.errand.in_script:
            await self._task_fails(visit, job, task, name, why)
            return
        if job.requeue is None:
            raise EncampError(
                Code.UNREACHABLE,
                f"It is not known yet whether job {job.id} may be begun a second time.",
                transient=True,
            )
        verdict = after_failure(job, self._settings, begun=True, tries=visit.asked.tries)
        if verdict.action is Action.FAIL:
            LOG.warning("Job %s failed: %s", job.id, why)
            self._records_of(visit, job, task, name, Outcome.FAILED, why)
            sentence = f"Job {job.id} failed, and may not be begun a second time: {why}"
            await visit.say(frames.failed(Code.MACHINE_LOST.value, sentence))
            return
        await self._give_back(visit, job, task, name, why, hold=verdict.action is Action.HOLD)

    # ── not begun, and not to be ─────────────────────────────────────────────────────────────────

    async def _not_begun(
        self,
        visit: Visit,
        job: BatchJob,
        task: Task,
        name: str,
        error: EncampError,
        host: Former | None,
    ) -> None:
        """It may come again, as often as the settings say; then it goes back."""
        tries = visit.asked.tries + 1
        poison = error.code in POISON and not error.transient
        verdict = after_failure(
            job, self._settings, begun=False, tries=self._settings.tries if poison else tries
        )
        why = error.sentence
        if error.code is Code.CONFIGURATION:
            why = " ".join([why, *error.detail.splitlines()[:1]])
            self._failing.failed(name, why, job.uid, time.time(), Fault.UNDESCRIBED)
        LOG.warning("Job %s could not be begun: %s", job.id, why)
        if poison and not task.is_script:
            await self._task_fails(visit, job, task, name, why)
            return
        if verdict.action is Action.AGAIN:
            await visit.say(frames.again(verdict.delay, told_of(error)))
        else:
            hold = poison or verdict.action is Action.HOLD
            await self._give_back(visit, job, task, name, why, hold=hold, host=host)

    async def _task_fails(
        self, visit: Visit, job: BatchJob, task: Task, name: str, why: str
    ) -> None:
        """One in the machine of its job's script: what becomes of the job is that one's affair."""
        LOG.warning("A task of job %s failed: %s", job.id, why)
        self._records_of(visit, job, task, name, Outcome.FAILED, why)
        sentence = f"A task of job {job.id} failed: {why}"
        await visit.say(frames.failed(Code.MACHINE_LOST.value, sentence))

    async def _give_back(
        self,
        visit: Visit,
        job: BatchJob,
        task: Task,
        name: str,
        why: str,
        *,
        hold: bool,
        host: Former | None = None,
    ) -> None:
        if host is not None and not host.errand.tasks:
            await self._task_fails(visit, job, task, name, why)
            return
        # Said first: its batch system may end it as soon as it has it back.
        await visit.say(frames.note(f"Job {job.id} could not be run to its end here: {why}"))
        try:
            back = await self._in_thread(
                lambda: self._system.give_back(job, task, f"Encamp: {why}", hold=hold)
            )
        except EncampError as error:
            LOG.warning("Job %s could not be given back: %s", job.id, error.sentence)
            if error.transient or error.code not in VERDICTS:
                # It waits here until its batch system takes it.
                await visit.say(frames.again(SOON if error.transient else LATER, error.sentence))
                return
            self._records_of(visit, job, task, name, Outcome.FAILED, why)
            sentence = f"Job {job.id} failed: {why}"
            if error.code is not Code.WRONG_STATE:
                sentence = f"{sentence} It could not be queued again: {error}"
            await visit.say(frames.failed(Code.NO_ROOM.value, sentence))
            return
        LOG.warning("Job %s is %s: %s", job.id, "held" if hold else "queued again", why)
        outcome = Outcome.HELD if hold else Outcome.GIVEN_BACK
        if back.left:
            way = WayBack(left=back.left, outcome=outcome, reason=why)
            key, way = self._way_of(job, task) or (self._record_of(visit, job, task, name), way)
            if not await self._settling.sent(key, job, task, way, visit.is_gone):
                raise GoneError
        else:
            self._records_of(visit, job, task, name, outcome, why)
        sentence = f"Job {job.id} {'is held' if hold else 'is queued again'}."
        await visit.say(frames.given_back(back.exit_code, sentence, wait=back.wait))

    def _records_of(
        self, visit: Visit, job: BatchJob, task: Task, name: str, outcome: Outcome, why: str
    ) -> None:
        """What became of it, tried or not."""
        key = self._record_of(visit, job, task, name)
        self._records.over(key, outcome=outcome, reason=why)

    def _record_of(self, visit: Visit, job: BatchJob, task: Task, name: str) -> str:
        """The one that it has, or a new one. Its starter will not come again."""
        key = self._formers.record_of((job.id, task.step, task.number))
        key = key or self._new_record(visit, job, task, name)
        self._formers.closed(key)
        return key

    def _way_of(self, job: BatchJob, task: Task) -> tuple[str, WayBack] | None:
        """Of this run of the job, if it is on its way back already."""
        for record in self._records.running():
            same = (record.id, record.step, record.restarts) == (job.id, task.step, job.restarts)
            if same and record.back is not None:
                return record.key, record.back
        return None

    def _new_record(self, visit: Visit, job: BatchJob, task: Task, name: str) -> str:
        key = f"{OWN}{secrets.token_hex(12)}"
        self._records.came(key, job, environment=name, user=visit.user.name, step=task.step)
        return key

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
