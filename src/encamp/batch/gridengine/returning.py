"""The way back into the queue for a job whose run on this host is lost.

`qmod -rj` has a job wait again at once, also while there is something left of its run. If the next
run began before Grid Engine (8.1.9) has heard of the end of the lost one, it could take that for
the end of the next: it does on hosts where other jobs come and go. So the job's earliest start is
put off (`qalter -a`) until the execution daemon has cleared the lost run away, which it does when
the master has acknowledged its end. Unlike the lifting of a hold, a start outlasts a restart of the
master; and it comes by itself, if nobody is there any more to bring it forward.
"""

from __future__ import annotations

import logging
import re
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from encamp.batch.gridengine.answers import Detail, Listed, read_values
from encamp.batch.gridengine.calls import Calls
from encamp.batch.gridengine.ending import FORGOTTEN, ONLY_BATCH, USAGE, has_asked, stays
from encamp.batch.gridengine.halting import HEARD, Halting, has_tasks
from encamp.batch.gridengine.jobs import Jobs, noted_as, reason_noted
from encamp.batch.gridengine.shepherd import EXIT_STATUS, Shepherd, shepherds
from encamp.batch.system import EndingError
from encamp.model.batch import BatchJob
from encamp.model.errors import Code, EncampError

PUT_OFF = 900.0
"""Seconds by which the start is put off, again and again as long as it has to be: so long does a
job wait in vain if its host, or the agent there, is lost for good in that very moment."""
SKEW = 60.0
"""Seconds by which the clocks of hosts may differ that put off the start of one array."""
AT_ONCE = "200001010000"
"""A time to start that is over."""
BACK, OVER = "encamp_back", "over"
"""Where a job's context says on which host it is waited for what is left of it; and what it says
there afterwards. Tasks of an array have one start, but a mark each; and so has a program on another
host that the job has begun, beside that of the job itself:"""
MARK = re.compile(rf"{BACK}(_.+)?")
NOT_ALLOWED = "jsv_allowed_mod"
"""What Grid Engine names when it refuses to have jobs changed in some way."""
RESCHEDULED = "rescheduling"
"""What `qmod` says of a job that it has put back;"""
REFUSED = "not restartable"
"""and of one that it never will."""
KEPT = 300.0
"""Seconds after a shepherd's end in which its daemon has told of it, where directories are kept for
people to look at:"""
KEEPS = re.compile(r"\bKEEP_ACTIVE=(?!0|false)", re.IGNORECASE)
"""by this of `execd_params`."""
TASKS_END = 30.0
"""Seconds in which programs have ended that a lost script has begun."""
REPORT_TIME, USUAL_REPORT_TIME = "load_report_time", 40.0
"""How often a daemon tells what it has not told at once; in seconds, where nothing is set."""
REPORTS, LATE = 2, 10.0
"""Reports after which a daemon has nothing more to tell of a job that it was let go of in the wrong
order; and by how many seconds the last may be late."""
NOT_AGAIN = "It may not be begun a second time."
NOBODY, NOWHERE = 0, "/dev/null/active_jobs/job"
"""The shepherd and the directory of a run that had ended before this agent could see it."""

LOG = logging.getLogger(__name__)


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """What has to be known of a run that is lost."""

    shepherd: int
    """Its process."""
    directory: str
    """Where that worked."""
    part: str = ""
    """Of the job, if it is not its script that is lost."""
    tasks: bool = False
    """Had it any on this host when it was lost?"""


LOST = msgspec.json.Decoder(Lost)


class Returning:
    def __init__(self, calls: Calls, jobs: Jobs) -> None:
        self._calls = calls
        self._jobs = jobs
        self._halting = Halting()
        self._awaited: dict[Lost, float] = {}
        """Runs whose tasks are waited for, and since when;"""
        self._with_tasks: dict[Lost, bool] = {}
        """whether they had some when they were last looked at;"""
        self._spoken_of: dict[Lost, float] = {}
        """and those that a daemon may still tell of, and until when."""

    def left_of(self, job: BatchJob, shepherd: Shepherd) -> str:
        """What `finish` needs to know, if the job may begin again. Nothing is done yet."""
        detail = self._jobs.detail(job.id)
        if detail is None:
            raise stays(FORGOTTEN)
        if detail.attended:
            raise stays(ONLY_BATCH)
        if not self._jobs.may_run_again(shepherd, detail):
            raise stays(NOT_AGAIN)
        lost = Lost(
            shepherd=shepherd.pid,
            directory=str(shepherd.directory),
            part=shepherd.part,
            tasks=has_tasks(shepherd.directory),
        )
        return msgspec.json.encode(lost).decode()

    def left_unseen(self, part: str) -> str:
        """The same of one that is awaited here, and of which nothing is left here."""
        lost = Lost(shepherd=NOBODY, directory=f"{NOWHERE}/{part}", part=part, tasks=True)
        return msgspec.json.encode(lost).decode()

    def finish(self, job: BatchJob, left: str, reason: str, *, hold: bool) -> None:
        """`hold`: it is held as if by its user then."""
        lost = LOST.decode(left)
        try:
            self._bring(job, lost, reason, hold=hold)
        except EncampError as error:
            if not error.transient:
                self._forget(lost)
            raise
        self._forget(lost)

    def _forget(self, lost: Lost) -> None:
        for known in (self._awaited, self._with_tasks, self._spoken_of):
            known.pop(lost, None)

    def _bring(self, job: BatchJob, lost: Lost, reason: str, *, hold: bool) -> None:
        if not lost.part:
            self._bring_all(job, lost, reason, hold=hold)
            return
        with self._halting.until_heard(job.id, self._calls.host, Path(lost.directory)):
            self._bring_all(job, lost, reason, hold=hold)

    def _bring_all(self, job: BatchJob, lost: Lost, reason: str, *, hold: bool) -> None:
        detail = self._jobs.detail(job.id)
        listed = [] if detail is None else self._jobs.listed(job.id, owner=detail.owner)
        if not listed or detail is None:
            raise stays(FORGOTTEN)
        if any("q" in each.state for each in listed):
            self._await_tasks(job.id, lost, HEARD)
            if not self._is_told(lost):
                self._put_off_further(job.id, detail)
                raise _not_told(job.id)
            self._bring_forward(job.id, lost.part)
        elif self._is_still_lost(job.id, lost, listed):
            self._await_tasks(job.id, lost, TASKS_END)
            self._reschedule(job, lost, listed, reason, hold=hold)
            raise _not_told(job.id, queued=False)
        # Else it runs: somebody was faster.

    def is_queued_again(self, id: str, part: str) -> bool:
        """One that was here, and runs or waits now to run elsewhere. If it was not its script,
        that can have run elsewhere all the time."""
        here = f"@{self._calls.host}"
        listed = self._jobs.listed(id)
        if part:
            return any("q" in job.state for job in listed)
        return any("q" in job.state or not job.queue.endswith(here) for job in listed)

    def is_awaited(self, id: str, part: str) -> bool:
        """Was it put back by somebody else, who has left it to us to wait for what is here?"""
        detail = self._jobs.detail(id)
        here = detail is not None and detail.context.get(mark(id, part)) == self._calls.host
        return here and any("q" in job.state for job in self._jobs.listed(id))

    def _is_still_lost(self, id: str, lost: Lost, listed: list[Listed]) -> bool:
        """Is it the lost run that it is said to be in? The shepherd of a task is there as long as
        Grid Engine has not heard of its end."""
        if lost.shepherd == NOBODY:
            return False
        host = self._calls.host
        place = id, host, lost.part
        runs = [each for each in shepherds() if (each.id, each.host, each.part) == place]
        if lost.part:
            there = any(each.pid == lost.shepherd for each in runs)
            return there and not has_asked(Path(lost.directory))
        here = any(job.queue.endswith(f"@{host}") for job in listed)
        return here and all(each.pid == lost.shepherd for each in runs)

    def _await_tasks(self, id: str, lost: Lost, longest: float) -> None:
        """Programs that a lost script has begun on its own host end by themselves, with its machine
        or soon after. If Grid Engine's master heard of that after it has let go of the script, its
        daemon (8.1.9) would keep the job in mind for ever, and never begin it there again. But once
        that has seen the script's end, which nobody keeps from it any more, it forgets the job at
        once."""
        begun = self._awaited.setdefault(lost, time.monotonic())
        directory = Path(lost.directory)
        begun_here = has_tasks(directory)
        if begun_here or directory.exists():
            self._with_tasks[lost] = begun_here
        is_over = time.monotonic() - begun > longest or (directory / USAGE).exists()
        if begun_here and not is_over:
            raise EncampError(
                Code.WRONG_STATE, f"Tasks of job {id} have not ended yet.", transient=True
            )
        del self._awaited[lost]

    def _reschedule(
        self, job: BatchJob, lost: Lost, listed: list[Listed], reason: str, *, hold: bool
    ) -> None:
        marks = {mark(job.id): listed[0].queue.partition("@")[2]}
        marks[mark(job.id, lost.part)] = self._calls.host
        noted = ",".join(f"{name}={host}" for name, host in marks.items() if host)
        noted = f"{noted},{reason_noted(job.id, reason, job.restarts + 1)}"
        self._put_off(job.id, "-ac", noted)
        if hold:
            self._calls("qalter", "-h", "u", job.id, purpose=f"holding job {job.id}")
        if not lost.part:
            self._put_back(job.id, lost.part)
            return
        with self._halting.halted(job.id, self._calls.host, Path(lost.directory)):
            self._put_back(job.id, lost.part)

    def _put_back(self, id: str, part: str) -> None:
        said = self._calls("qmod", "-rj", id, purpose=f"queueing job {id} again")
        if REFUSED in said:
            for each in {"", part}:
                self._bring_forward(id, each)
            raise stays(NOT_AGAIN)
        if RESCHEDULED not in said:
            raise EncampError(
                Code.WRONG_STATE, f"Grid Engine says: {said.strip()[:200]}.", transient=True
            )

    def _put_off(self, id: str, *more: str) -> None:
        start = time.strftime("%Y%m%d%H%M.%S", time.gmtime(time.time() + PUT_OFF))
        self._alter(id, "-a", start, *more, purpose=f"putting the start of job {id} off")

    def _put_off_further(self, id: str, detail: Detail) -> None:
        """Another task of its array may have brought its start forward meanwhile."""
        if detail.not_before < time.time() + PUT_OFF / 2:
            self._put_off(id)

    def _bring_forward(self, id: str, part: str) -> None:
        """Of several hosts that wait for something of a job the last one does it: it finds all
        other marks over. A start that is later than we would have it is its user's own."""
        over = f"{mark(id, part)}={OVER}"
        self._alter(id, "-ac", over, purpose=f"noting that job {id} is back")
        detail = self._jobs.detail(id)
        if detail is None or any(
            MARK.fullmatch(name) and value != OVER for name, value in detail.context.items()
        ):
            return
        now = time.time()
        if now < detail.not_before < now + PUT_OFF + SKEW:
            self._alter(id, "-a", AT_ONCE, purpose=f"having job {id} begin again")

    def _alter(self, id: str, *words: str, purpose: str) -> None:
        """All tasks of an array at once. A site that does not let us has its job back all the
        same, if somewhat too early."""
        try:
            self._calls("qalter", *words, id.partition(".")[0], purpose=purpose)
        except EncampError as error:
            if NOT_ALLOWED not in error.detail:
                raise
            LOG.warning(
                "Job %s may begin before its lost run is cleared away, and be lost: jsv_allowed_mod"
                " of Grid Engine's configuration does not list 'a' and 'ac'. 'encamp batch install"
                " gridengine' adds them.",
                id,
            )

    def _is_told(self, lost: Lost) -> bool:
        """Has the master acknowledged the end of the lost run?"""
        place = Path(lost.directory)
        try:
            ended = (place / EXIT_STATUS).stat().st_mtime
        except OSError:
            return not (
                place.exists()
                or (lost.part and self._halting.is_unheard(place))
                or self._is_spoken_of(lost)
            )
        return time.time() - ended > KEPT and self._keeps_directories()

    def _is_spoken_of(self, lost: Lost) -> bool:
        """May its daemon still have something to tell of it, which the master would take for the
        end of the next run? Not if its tasks went first. The directory of a task is in that of its
        job: if both are gone, nobody knows in which order."""
        if lost.part:
            is_certain = Path(lost.directory).parent.exists()
        else:
            is_certain = not self._with_tasks.get(lost, lost.tasks)
        if not is_certain:
            now = time.monotonic()
            if lost not in self._spoken_of:
                self._spoken_of[lost] = now + REPORTS * self._report_time() + LATE
            if now < self._spoken_of[lost]:
                return True
        self._spoken_of.pop(lost, None)
        self._with_tasks.pop(lost, None)
        return False

    def _report_time(self) -> float:
        times = [seconds(text) for text in self._settings(REPORT_TIME)]
        return max(times, default=USUAL_REPORT_TIME)

    def _keeps_directories(self) -> bool:
        return any(KEEPS.search(text) for text in self._settings("execd_params"))

    def _settings(self, name: str) -> list[str]:
        """What is set for all hosts, and for this one."""
        found = []
        for where in ("global", self._calls.host):
            with suppress(EncampError):  # A host need not have settings of its own.
                text = self._calls("qconf", "-sconf", where, purpose="asking for its settings")
                found += [values[name] for values in read_values(text) if name in values]
        return found


def seconds(text: str) -> float:
    """Of a time as Grid Engine has it, `00:00:40` or `40`."""
    try:
        return float(sum(int(part) * 60**i for i, part in enumerate(reversed(text.split(":")))))
    except ValueError:
        return USUAL_REPORT_TIME


def mark(id: str, part: str = "") -> str:
    name = noted_as(BACK, id)
    return f"{name}_{part}" if part else name


def _not_told(id: str, *, queued: bool = True) -> EndingError:
    sentence = f"Grid Engine has not cleared away the lost run of job {id} yet."
    return EndingError(sentence, queued=queued)
