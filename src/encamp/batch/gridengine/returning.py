"""The way back into the queue for a job whose run on this host is lost.

`qmod -rj` has a job wait again at once, also while there is something left of its run. If the next
run began before Grid Engine (8.1.9) has heard of the end of the lost one, it could take that for
the end of the next: it does on hosts where other jobs come and go. So the job is held meanwhile, by
a hold that its user neither sets nor lifts, until the execution daemon has cleared the lost run
away, which it does when the master has acknowledged its end. All of that is written down where an
agent finds it that comes after a killed one: in the job's context.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import msgspec

from encamp.batch.gridengine.answers import Detail, Listed
from encamp.batch.gridengine.calls import Calls
from encamp.batch.gridengine.ending import FORGOTTEN, check_lost, stays
from encamp.batch.gridengine.jobs import Jobs, noted_as, reason_noted
from encamp.batch.gridengine.shepherd import Shepherd, shepherds
from encamp.batch.system import EndingError
from encamp.model.batch import BatchJob
from encamp.model.errors import Code, EncampError

BACK = "encamp_back"
"""Where a job's context says on which host and after which run it comes back."""
OVER = "over"
"""What it says there when it has."""
RESCHEDULED = "rescheduling"
"""What `qmod` says of a job that it has put back."""
EXIT_STATUS = "exit_status"
"""What a shepherd writes last."""
KEPT = 300.0
"""Seconds after a shepherd's end in which its daemon has told of it. Directories that are there
longer are kept for people to look at (`KEEP_ACTIVE` of `execd_params`)."""

PLACE = re.compile(r"/[\w./+-]+/active_jobs/[0-9]+\.[0-9]+")
WAYS = re.compile(rf"([^: ]+):([0-9]{{1,10}}):(|{PLACE.pattern})(:stays)?")


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """That a job is on its way back."""

    host: str
    pid: int
    """Of the shepherd of its lost run."""
    directory: str
    """Where that worked; empty if a job's context cannot say it."""
    stays: bool
    """An administrator held it before, and does afterwards."""

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.directory}{':stays' if self.stays else ''}"


def way_in(detail: Detail, id: str) -> Way | None:
    """The context can be changed by the job's user, too, who can only have that job wait, or
    begin sooner than is good for it."""
    found = WAYS.fullmatch(detail.context.get(noted_as(BACK, id), ""))
    if found is None:
        return None
    return Way(host=found[1], pid=int(found[2]), directory=found[3], stays=found[4] is not None)


class Returning:
    def __init__(self, calls: Calls, jobs: Jobs) -> None:
        self._calls = calls
        self._jobs = jobs

    def send(self, job: BatchJob, shepherd: Shepherd, reason: str, *, hold: bool) -> None:
        """Queue it again, whatever is left of this run. `follow` has to see to the rest. `hold`: it
        is then held as if by its user."""
        there = str(shepherd.directory)
        way = Way(
            host=self._calls.host,
            pid=shepherd.pid,
            directory=there if PLACE.fullmatch(there) else "",
            stays=bool(self._jobs.listed(job.id, "-s", "hs")),
        )
        noted = f"{noted_as(BACK, job.id)}={way},{reason_noted(job.id, reason, job.restarts + 1)}"
        # Both at once: nobody finds it held and does not know why.
        words = ("-h", "us" if hold else "s", "-ac", noted, job.id)
        self._calls("qalter", *words, purpose=f"holding job {job.id}")
        self._reschedule(job.id)

    def bring_back(
        self, job: BatchJob, shepherd: Shepherd | None, reason: str, *, hold: bool, held: bool
    ) -> None:
        """`shepherd`: of its run here, if that is known. If the starter's end is not `held`, it can
        be done only until Grid Engine notices that the shepherd has ended, which it looks for once
        a second."""
        detail = self._jobs.detail(job.id)
        if detail is None:
            raise stays(FORGOTTEN)
        way = way_in(detail, job.id)
        if way is None or way.host != self._calls.host:
            if shepherd is None or not shepherd.directory.exists():
                if self._is_queued_again(job.id, detail.owner):
                    return
                raise stays(FORGOTTEN)
            check_lost(shepherd, held=held)
            if not self._jobs.may_run_again(shepherd, detail):
                raise stays("It may not be begun a second time.")
            self.send(job, shepherd, reason, hold=hold)
            raise _not_told(job.id)
        self._follow(job.id, way, detail.owner)

    def _follow(self, id: str, way: Way, owner: str) -> None:
        """Returns when it can begin again. Raises an error before."""
        listed = self._jobs.listed(id, owner=owner)
        if any("q" in job.state for job in listed):
            if not _is_told(way):
                raise _not_told(id)
            self._release(id, way)
        elif listed and self._is_still_lost(id, way, listed):
            # Who had asked for it back has come no further than to hold it.
            self._reschedule(id)
            raise _not_told(id)
        elif listed:
            self._release(id, way)  # Somebody was faster: it runs.
        else:
            raise stays(FORGOTTEN)

    def _is_still_lost(self, id: str, way: Way, listed: list[Listed]) -> bool:
        """Is it the lost run that it is said to be in?"""
        host = self._calls.host
        here = any(job.queue.endswith(f"@{host}") for job in listed)
        runs = (each for each in shepherds() if (each.id, each.host) == (id, host))
        return here and all(each.pid == way.pid for each in runs)

    def _reschedule(self, id: str) -> None:
        said = self._calls("qmod", "-rj", id, purpose=f"queueing job {id} again")
        if RESCHEDULED not in said:
            raise EncampError(
                Code.WRONG_STATE, f"Grid Engine says: {said.strip()[:200]}.", transient=True
            )

    def _release(self, id: str, way: Way) -> None:
        lift = () if way.stays else ("-h", "S")
        words = (*lift, "-ac", f"{noted_as(BACK, id)}={OVER}", id)
        self._calls("qalter", *words, purpose=f"having job {id} begin again")

    def _is_queued_again(self, id: str, owner: str) -> bool:
        """One that was here, and runs or waits now to run elsewhere."""
        here = f"@{self._calls.host}"
        listed = self._jobs.listed(id, owner=owner)
        return any("q" in job.state or not job.queue.endswith(here) for job in listed)


def _is_told(way: Way) -> bool:
    """Has the master acknowledged the end of the lost run?"""
    if not way.directory:
        return not any(each.pid == way.pid for each in shepherds())
    try:
        ended = (Path(way.directory) / EXIT_STATUS).stat().st_mtime
    except OSError:
        return not Path(way.directory).exists()
    return time.time() - ended > KEPT


def _not_told(id: str) -> EndingError:
    return EndingError(f"Grid Engine has not cleared away the lost run of job {id} yet.")
