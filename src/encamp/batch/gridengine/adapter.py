"""Grid Engine (Son of Grid Engine 8.1 and its kin) as Encamp needs it."""

from __future__ import annotations

import pwd
import re
import time
from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from encamp.batch.gridengine.answers import (
    Detail,
    Listed,
    amount,
    environment_asked,
    read_detail,
    read_jobs,
    read_values,
)
from encamp.batch.gridengine.calls import Calls
from encamp.batch.gridengine.commands import NAMES, QSUB
from encamp.batch.gridengine.ending import FORGOTTEN, ONLY_BATCH, check_lost, queue_again, stays
from encamp.batch.gridengine.opening import Opening
from encamp.batch.gridengine.shepherd import INTERACTIVE, Shepherd, shepherd_of, shepherds
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
WHY, RESTARTS = "encamp", "encamp_restarts"
"""Where a job's context says why it was given back, and how often."""
QUEUES_LAST = 60.0
"""Seconds for which what a queue says of running jobs again is remembered."""
LONGEST_REASON = 400
MOST_SEEN = 1000
"""Shepherds that are remembered."""


class GridEngine(BatchSystem):
    name = "gridengine"

    def __init__(self, settings: BatchSettings) -> None:
        self._calls = Calls(settings.programs)
        self._opening = Opening(self._calls)
        self._reruns: dict[str, tuple[float, bool]] = {}
        self._seen: OrderedDict[str, Shepherd] = OrderedDict()
        """Of jobs that came, the latest last."""
        self._asked_for: dict[str, int] = {}
        """Jobs that were asked for back: the shepherds of the runs that were lost."""

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
        shepherd = self._seen[id] = self._shepherd(id)
        if self._asked_for.get(id) != shepherd.pid:
            self._asked_for.pop(id, None)
        self._seen.move_to_end(id)
        while len(self._seen) > MOST_SEEN:
            self._seen.popitem(last=False)
        config = shepherd.config
        detail = self._detail_if_it_answers(id)
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
            requeue=self._may_run_again_if_known(shepherd, detail),
            hosts=shepherd.hosts,
            environment=environment_asked(requests.get("env", "")),
        )

    def _shepherd(self, id: str) -> Shepherd:
        found = [each for each in shepherds() if each.id == id and each.host == self._calls.host]
        if not found:
            raise EncampError(
                Code.INPUT_MISSING,
                f"No job {id} of Grid Engine runs on {self._calls.host}.",
                "It may just have ended.",
            )
        return min(found, key=lambda each: (each.part != "", each.pid))

    def _detail_if_it_answers(self, id: str) -> Detail | None:
        """A job that was sent here runs, whether or not its master is there at the moment, and can
        be understood."""
        try:
            return self._detail(id)
        except EncampError as error:
            if error.transient or error.code in (Code.INPUT_MISSING, Code.PROTOCOL):
                return None
            raise

    def _detail(self, id: str) -> Detail | None:
        job = id.partition(".")[0]
        return read_detail(self._calls("qstat", "-xml", "-j", job, purpose=f"asking for job {id}"))

    def _may_run_again_if_known(self, shepherd: Shepherd, detail: Detail | None) -> bool | None:
        if INTERACTIVE in shepherd.config:
            return False
        if detail is None:
            return None
        try:
            return self._may_run_again(shepherd, detail)
        except EncampError as error:
            if error.transient:
                return None
            raise

    def _may_run_again(self, shepherd: Shepherd, detail: Detail) -> bool:
        """Of a batch job."""
        if detail.rerun is not None:
            return detail.rerun
        queue = f"{shepherd.config.get('queue', '')}@{self._calls.host}"
        asked, rerun = self._reruns.get(queue, (0.0, False))
        if time.monotonic() - asked > QUEUES_LAST or not asked:
            text = self._calls("qconf", "-sq", queue, purpose=f"asking about {queue}")
            rerun = any(values.get("rerun") == "TRUE" for values in read_values(text))
            self._reruns[queue] = (time.monotonic(), rerun)
        return rerun

    def give_back(self, job: BatchJob, reason: str, *, hold: bool) -> GivenBack:
        shepherd = self._shepherd(job.id)
        config = shepherd.config
        self._note(job, reason)
        if INTERACTIVE in config:
            return GivenBack(exit_code=LATER)
        if hold and config.get("forbid_apperror", "0") == "0":
            return GivenBack(exit_code=IN_ERROR)
        if hold:
            self._hold(job)
        if config.get("forbid_reschedule", "0") != "0":
            self._queue_again(job, shepherd)
        return GivenBack(exit_code=AGAIN)

    def bring_back(self, job: BatchJob, task: Task, reason: str, *, hold: bool, held: bool) -> None:
        """If the starter's end is not held, it can be done only until Grid Engine notices that the
        shepherd has ended, which it looks for once a second: so it comes before all that can wait,
        and whether it was in time is seen when Grid Engine has cleared up."""
        if not task.is_script:
            raise stays(ONLY_BATCH)
        shepherd = self._last_seen(job.id)
        if shepherd is None or not shepherd.directory.exists():
            if self._is_queued_again(job.id):
                return
            raise stays(FORGOTTEN)
        asked_for = self._asked_for.get(job.id, shepherd.pid)
        if asked_for != shepherd.pid:
            return  # It runs again, on this very host.
        if job.id not in self._asked_for:
            check_lost(shepherd, held=held)
            detail = self._detail(job.id)
            if detail is None or not self._may_run_again(shepherd, detail):
                raise stays("It may not be begun a second time.")
            self._ask_for(job, shepherd, reason, hold=hold)
        if not held and not self._is_queued_again(job.id):
            raise EncampError(
                Code.WRONG_STATE, "Grid Engine has not noticed the job's end yet.", transient=True
            )

    def _ask_for(self, job: BatchJob, shepherd: Shepherd, reason: str, *, hold: bool) -> None:
        """Once for each run."""
        if hold:
            self._hold(job)
        self._queue_again(job, shepherd)
        self._asked_for[job.id] = shepherd.pid
        self._note(job, reason)

    def _queue_again(self, job: BatchJob, shepherd: Shepherd) -> None:
        """If that cannot be written down where Grid Engine looks for it, it is said; then the job
        must not begin before this run's end was told, and is held."""
        try:
            queue_again(shepherd)
        except EncampError:
            if not shepherd.directory.exists():
                raise
            self._hold(job)
            self._calls("qmod", "-rj", job.id, purpose=f"queueing job {job.id} again")

    def _last_seen(self, id: str) -> Shepherd | None:
        """Its shepherd, which may have ended; None: it has, and was not seen."""
        try:
            return self._shepherd(id)
        except EncampError:
            return self._seen.get(id)

    def _is_queued_again(self, id: str) -> bool:
        """One that was here, and runs or waits now to run elsewhere."""
        here = f"@{self._calls.host}"
        return any("q" in job.state or not job.queue.endswith(here) for job in self._listed(id))

    def _hold(self, job: BatchJob) -> None:
        self._calls("qalter", "-h", "u", job.id, purpose=f"holding job {job.id}")

    def _note(self, job: BatchJob, reason: str) -> None:
        """Where its user reads it: `qstat -j ID`. The job goes back also if nobody can note why."""
        number = job.id.partition(".")[0]
        text = f"{noted_as(WHY, job.id)}={escaped(reason)}"
        text += f",{noted_as(RESTARTS, job.id)}={job.restarts + 1}"
        try:
            self._calls("qalter", "-ac", text, number, purpose=f"noting why job {job.id} goes back")
        except EncampError as error:
            if error.code is Code.PROGRAM_MISSING:
                raise

    def commands(self, environment: str) -> dict[str, Offered]:
        found = offered(NAMES, self._calls.program)
        if "qsub" in found:
            found["qsub"] = msgspec.structs.replace(found["qsub"], options=QSUB)
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

    def _jobs(self, *options: str) -> list[Listed]:
        words = ("-u", "*", "-r", "-xml", *options)
        return list(read_jobs(self._calls("qstat", *words, purpose="looking at the queue")))

    def _listed(self, id: str) -> list[Listed]:
        number, _, task = id.partition(".")
        return [job for job in self._jobs() if job.id == number and job.has(task)]

    def waiting(self) -> tuple[Waiting, ...]:
        """Jobs that are held, or in error, wait for somebody and not for a host."""
        found: dict[str, Waiting] = {}
        for job in self._jobs("-s", "p"):
            if set(job.state) & {"h", "E"}:
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
        listed = self._listed(id)
        detail = self._detail_if_it_answers(id)
        if not listed or detail is None:
            return None
        first = listed[0]
        why = detail.context.get(noted_as(WHY, id), "")
        waits = "q" in first.state
        reasons = (why, *detail.errors, *(detail.messages if waits else ()))
        return JobStanding(
            state=first.state,
            reason="; ".join(dict.fromkeys(part for part in reasons if part)),
            user=first.owner,
            environment=first.environment,
            waits=waits,
            held=bool(set(first.state) & {"h", "E"}),
            hosts=tuple(job.queue.partition("@")[2] for job in listed if "@" in job.queue),
        )


def owner_of(name: str) -> int:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError as error:
        raise EncampError(
            Code.NOT_PERMITTED, f"The job's owner '{name}' has no account on this host."
        ) from error


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


def restarts_of(shepherd: Shepherd, detail: Detail | None) -> int:
    """Grid Engine tells only that there were any; how many is what we have noted."""
    if not shepherd.restarted:
        return 0
    noted = "" if detail is None else detail.context.get(noted_as(RESTARTS, shepherd.id), "")
    return max(1, int(noted)) if re.fullmatch(r"[0-9]{1,5}", noted) else 1


def noted_as(name: str, id: str) -> str:
    """The tasks of an array share one context."""
    task = id.partition(".")[2]
    return f"{name}_{task}" if task else name


def escaped(reason: str) -> str:
    """A reason as a value of a context: nothing in it can end the value, or begin another, or hide
    the end of it (as quotes do)."""
    plain = reason.replace(",", ";").replace("=", ":").replace("'", "").replace('"', "")
    return re.sub(r"[^A-Za-z0-9 ./:;()+-]+", " ", plain)[:LONGEST_REASON].strip() or "given back"
