"""Grid Engine (Son of Grid Engine 8.1 and its kin) as Encamp needs it."""

from __future__ import annotations

import pwd
import re
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime

import msgspec

from encamp.batch.gridengine.answers import Listed, amount, environment_asked
from encamp.batch.gridengine.calls import Calls
from encamp.batch.gridengine.commands import NAMES, QSUB
from encamp.batch.gridengine.ending import FORGOTTEN, ONLY_BATCH, check_lost, stays
from encamp.batch.gridengine.jobs import WHY, Jobs, noted_as, reason_noted, restarts_of
from encamp.batch.gridengine.opening import Opening
from encamp.batch.gridengine.returning import Returning
from encamp.batch.gridengine.shepherd import Shepherd, shepherd_of, shepherds
from encamp.batch.offering import offered
from encamp.batch.system import BatchSystem
from encamp.model.batch import (
    Bait,
    BatchJob,
    BatchSettings,
    GivenBack,
    JobStanding,
    Offered,
    Task,
    Waiting,
)
from encamp.model.errors import Code, EncampError

AGAIN, IN_ERROR, LATER = 99, 100, 75
"""Exit codes: begin it again; leave it in the queue, in error; it failed, and may work later."""
MEMORY_REQUESTS = ("virtual_free", "mem_free", "h_rss")
"""What jobs ask for, each slot for itself, where no limit says more."""
NOTICED = 1.0
"""Seconds in which a shepherd has noticed that nobody waits for its task any more, should it be
that what has ended the task."""
MOST_SEEN = 1000
"""Shepherds that are remembered."""


class GridEngine(BatchSystem):
    name = "gridengine"

    def __init__(self, settings: BatchSettings) -> None:
        self._calls = Calls(settings.programs)
        self._opening = Opening(self._calls)
        self._jobs = Jobs(self._calls)
        self._returning = Returning(self._calls, self._jobs)
        self._seen: OrderedDict[tuple[str, str], Shepherd] = OrderedDict()
        """Of jobs and their tasks that came, the latest last."""

    # ── jobs that come to this host ──────────────────────────────────────────────────────────────

    def job_of(self, pid: int) -> str | None:
        found = shepherd_of(pid)
        return None if found is None else found.id

    def task_of(self, pid: int, variables: Mapping[str, str]) -> Task:
        """Programs that a job has started on another of its hosts (`qrsh -inherit`) are one for
        each slot there."""
        found = shepherd_of(pid)
        if found is None or not found.part:
            return Task()
        return Task(step=found.part, count=found.slots)

    def marks_of(self, pid: int) -> tuple[int, ...]:
        found = shepherd_of(pid)
        return () if found is None or found.mark is None else (found.mark,)

    def describe(self, id: str) -> BatchJob:
        shepherd, *others = self._shepherds(id)
        self._note_seen(shepherd, *others)
        config = shepherd.config
        detail = self._jobs.detail_if_it_answers(id)
        requests = {} if detail is None else detail.requests
        project = config.get("acct_project", "none")
        return BatchJob(
            system=self.name,
            id=shepherd.id,
            uid=owner_of(config.get("job_owner", "")),
            name=config.get("job_name", ""),
            queue=config.get("queue", ""),
            account="" if project == "none" else project,
            cpus=shepherd.slots,
            memory=memory_of(shepherd, requests),
            limit=limit_of(shepherd),
            restarts=restarts_of(shepherd, detail),
            requeue=self._jobs.may_run_again_if_known(shepherd, detail),
            hosts=shepherd.hosts,
            environment=environment_asked(requests.get("env", "")),
        )

    def _shepherds(self, id: str) -> list[Shepherd]:
        """That of its script first, if that runs here."""
        found = [each for each in shepherds() if each.id == id and each.host == self._calls.host]
        if not found:
            raise EncampError(
                Code.INPUT_MISSING,
                f"No job {id} of Grid Engine runs on {self._calls.host}.",
                "It may just have ended.",
            )
        return sorted(found, key=lambda each: (each.part != "", each.pid))

    def _note_seen(self, *found: Shepherd) -> None:
        for each in found:
            self._seen[each.id, each.part] = each
            self._seen.move_to_end((each.id, each.part))
        while len(self._seen) > MOST_SEEN:
            self._seen.popitem(last=False)

    def give_back(self, job: BatchJob, task: Task, reason: str, *, hold: bool) -> GivenBack:
        part = part_of(task)
        place = job.id, self._calls.host, part
        found = [each for each in shepherds() if (each.id, each.host, each.part) == place]
        if not found:
            # Grid Engine has just ended it, maybe since it was put back because of a task.
            left = self.bring_back(job, task, reason, hold=hold, held=False)
            return GivenBack(exit_code=AGAIN, left=left)
        [shepherd] = found
        config = shepherd.config
        if shepherd.is_attended and not (part and self._is_batch(job.id)):
            self._note(job, reason)
            return GivenBack(exit_code=LATER)
        if config.get("forbid_reschedule", "0") != "0" or shepherd.is_parallel:
            # Its exit code means nothing; or it would have tasks of the job ended first, and the
            # job with them.
            left = self._returning.left_of(job, shepherd)
            return GivenBack(exit_code=LATER if part else AGAIN, left=left)
        self._note(job, reason)
        if not hold:
            return GivenBack(exit_code=AGAIN)
        if config.get("forbid_apperror", "0") == "0":
            return GivenBack(exit_code=IN_ERROR)
        self._calls("qalter", "-h", "u", job.id, purpose=f"holding job {job.id}")
        return GivenBack(exit_code=AGAIN)

    def bring_back(self, job: BatchJob, task: Task, reason: str, *, hold: bool, held: bool) -> str:
        """If the starter's end is not held, it can be done only until Grid Engine notices that the
        shepherd has ended, which it looks for once a second. With a task all of its job comes back:
        Grid Engine ends that for good if it sees a task killed. What else runs of the job, also on
        other hosts, is ended then, and waited for as if it had been lost itself."""
        part = part_of(task)
        if part and held:
            time.sleep(NOTICED)
        shepherd = self._last_seen(job.id, part)
        if shepherd is None or not shepherd.directory.exists():
            if not self._returning.is_queued_again(job.id, part):
                raise stays(FORGOTTEN)
            if not self._returning.is_awaited(job.id, part):
                return ""
            if shepherd is None:
                return self._returning.left_unseen(part)
        else:
            if shepherd.is_attended and not part:
                raise stays(ONLY_BATCH)
            try:
                check_lost(shepherd, held=held)
            except EncampError as error:
                if error.transient or not self._returning.is_awaited(job.id, part):
                    raise
        return self._returning.left_of(job, shepherd)

    def finish(self, job: BatchJob, left: str, reason: str, *, hold: bool) -> None:
        self._returning.finish(job, left, reason, hold=hold)

    def is_queued(self, id: str) -> bool:
        return any("q" in job.state for job in self._jobs.listed(id))

    def _last_seen(self, id: str, part: str) -> Shepherd | None:
        """Its shepherd, which may have ended; None: it has, and was not seen."""
        with suppress(EncampError):
            self._note_seen(*self._shepherds(id))
        return self._seen.get((id, part))

    def _is_batch(self, id: str) -> bool:
        """What is known at the place of a task of a job is only whether that is attended."""
        detail = self._jobs.detail(id)
        return detail is not None and not detail.attended

    def _note(self, job: BatchJob, reason: str) -> None:
        """Where its user reads it: `qstat -j ID`. The job goes back also if nobody can note why."""
        number = job.id.partition(".")[0]
        text = reason_noted(job.id, reason, job.restarts + 1)
        try:
            self._calls("qalter", "-ac", text, number, purpose=f"noting why job {job.id} goes back")
        except EncampError as error:
            if error.code is Code.PROGRAM_MISSING:
                raise

    def commands(self, environment: str) -> dict[str, Offered]:
        found = offered(NAMES, self._calls.program)
        if "qsub" in found:
            found["qsub"] = msgspec.structs.replace(found["qsub"], options=QSUB)
        if "qrsh" in found:
            found["qrsh"] = msgspec.structs.replace(found["qrsh"], tasks=True)
        return found

    # ── this host ────────────────────────────────────────────────────────────────────────────────

    def bait(self) -> Bait:
        return self._opening.look()

    def close(self, reason: str) -> None:
        self._opening.close(reason)

    def open(self) -> None:
        self._opening.open()

    def close_for_good(self, reason: str) -> None:
        self._opening.close_for_good(reason)

    def open_for_good(self) -> None:
        self._opening.open_for_good()

    # ── the queue ────────────────────────────────────────────────────────────────────────────────

    def waiting(self) -> tuple[Waiting, ...]:
        """Jobs that are held, or in error, wait for somebody and not for a host; others for a time
        (`qsub -a`)."""
        found: dict[str, Waiting] = {}
        jobs = [job for job in self._jobs.all("-s", "p") if not set(job.state) & {"h", "E"}]
        later = self._jobs.later() if jobs else set()
        for job in jobs:
            if job.id in later:
                continue
            before = found.get(job.environment, Waiting(environment=job.environment, jobs=0))
            found[job.environment] = Waiting(
                environment=job.environment,
                jobs=before.jobs + job.count,
                cpus=before.cpus + job.count * job.slots,
                oldest=min(before.oldest or job.submitted, job.submitted),
                owner=before.owner
                if before.oldest and before.oldest <= job.submitted
                else job.owner,
            )
        return tuple(found[name] for name in sorted(found))

    def standing(self, id: str) -> JobStanding | None:
        if re.fullmatch(r"[0-9]+(\.[0-9]+)?", id) is None:
            return None
        detail = self._jobs.detail_if_it_answers(id)
        listed = [] if detail is None else self._jobs.listed(id, owner=detail.owner)
        if not listed or detail is None:
            return None
        first = listed[0]
        why = detail.context.get(noted_as(WHY, id), "")
        waits = "q" in first.state
        reasons = [why, *detail.errors]
        if waits:
            reasons += [*detail.messages, starts_later(detail.not_before)]
        return JobStanding(
            state=first.state,
            reason="; ".join(dict.fromkeys(part for part in reasons if part)),
            user=first.owner,
            environment=first.environment,
            waits=waits,
            held=bool(set(first.state) & {"h", "E"}),
            release=self._release_of(first, detail.owner),
            hosts=tuple(job.queue.partition("@")[2] for job in listed if "@" in job.queue),
        )

    def _release_of(self, job: Listed, owner: str) -> str:
        """What lets go of a job that is held; of several holds, the one that takes most rights."""
        if "E" in job.state:
            return f"qmod -cj {job.id}"
        if "h" not in job.state:
            return ""
        if self._jobs.listed(job.id, "-s", "hs", owner=owner):
            return f"qalter -h S {job.id}, by an administrator of Grid Engine's"
        return f"qrls {job.id}"


def part_of(task: Task) -> str:
    return "" if task.is_script else task.step


def owner_of(name: str) -> int:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError as error:
        raise EncampError(
            Code.NOT_PERMITTED, f"The job's owner '{name}' has no account on this host."
        ) from error


def starts_later(not_before: float) -> str:
    """Empty: it may begin by now."""
    if not_before <= time.time():
        return ""
    when = datetime.fromtimestamp(not_before).astimezone()
    return f"it does not begin before {when:%Y-%m-%d %H:%M:%S %Z}"


def memory_of(shepherd: Shepherd, requests: Mapping[str, str]) -> int | None:
    limit = limit_of(shepherd)
    if limit is not None:
        return limit
    for name in MEMORY_REQUESTS:
        asked = amount(requests.get(name, ""))
        if asked:
            return asked * shepherd.slots
    return None


def limit_of(shepherd: Shepherd) -> int | None:
    """It counts for each slot, unless it is one of the whole job. Grid Engine ends jobs whose
    processes hold more than that together."""
    limit = amount(shepherd.config.get("h_vmem", ""))
    if limit is None:
        return None
    whole = shepherd.config.get("h_vmem_is_consumable_job", "0") != "0"
    return limit if whole else limit * shepherd.slots
