"""The way back into the queue for a job whose run on this host is lost.

`qmod -rj` has a job wait again at once, also while there is something left of its run. If the next
run began before Grid Engine (8.1.9) has heard of the end of the lost one, it could take that for
the end of the next: it does on hosts where other jobs come and go. So the job is held meanwhile, by
a hold that its user neither sets nor lifts, until the execution daemon has cleared the lost run
away, which it does when the master has acknowledged its end.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from encamp.batch.gridengine.answers import Listed, read_values
from encamp.batch.gridengine.calls import Calls
from encamp.batch.gridengine.ending import FORGOTTEN, stays
from encamp.batch.gridengine.jobs import Jobs, noted_as, reason_noted
from encamp.batch.gridengine.shepherd import Shepherd, shepherds
from encamp.batch.system import EndingError
from encamp.model.batch import BatchJob
from encamp.model.errors import Code, EncampError

BACK, OVER = "encamp_back", "over"
"""Where a job's context says on which host it is waited for what is left of it; and what it says
there afterwards. That is for people."""
RESCHEDULED = "rescheduling"
"""What `qmod` says of a job that it has put back;"""
REFUSED = "not restartable"
"""and of one that it never will."""
EXIT_STATUS = "exit_status"
"""What a shepherd writes last."""
KEPT = 300.0
"""Seconds after a shepherd's end in which its daemon has told of it, where directories are kept for
people to look at:"""
KEEPS = re.compile(r"\bKEEP_ACTIVE=(?!0|false)", re.IGNORECASE)
"""by this of `execd_params`."""
NOT_AGAIN = "It may not be begun a second time."


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """What has to be known of a run that is lost."""

    shepherd: int
    """Its process."""
    directory: str
    """Where that worked."""
    was_held: bool
    """By an administrator, whose hold stays."""


LOST = msgspec.json.Decoder(Lost)


class Returning:
    def __init__(self, calls: Calls, jobs: Jobs) -> None:
        self._calls = calls
        self._jobs = jobs

    def left_of(self, job: BatchJob, shepherd: Shepherd) -> str:
        """What `finish` needs to know, if the job may begin again. Nothing is done yet."""
        detail = self._jobs.detail(job.id)
        if detail is None:
            raise stays(FORGOTTEN)
        if not self._jobs.may_run_again(shepherd, detail):
            raise stays(NOT_AGAIN)
        lost = Lost(
            shepherd=shepherd.pid,
            directory=str(shepherd.directory),
            was_held=bool(self._jobs.listed(job.id, "-s", "hs", owner=detail.owner)),
        )
        return msgspec.json.encode(lost).decode()

    def finish(self, job: BatchJob, left: str, reason: str, *, hold: bool) -> None:
        """`hold`: it is held as if by its user then."""
        lost = LOST.decode(left)
        detail = self._jobs.detail(job.id)
        listed = [] if detail is None else self._jobs.listed(job.id, owner=detail.owner)
        if not listed:
            raise stays(FORGOTTEN)
        if any("q" in each.state for each in listed):
            if not self._is_told(lost):
                raise _not_told(job.id)
            self._release(job.id, lost)
        elif self._is_still_lost(job.id, lost, listed):
            self._reschedule(job, lost, reason, hold=hold)
            raise _not_told(job.id)
        # Else it runs: somebody was faster.

    def is_queued_again(self, id: str) -> bool:
        """One that was here, and runs or waits now to run elsewhere."""
        here = f"@{self._calls.host}"
        listed = self._jobs.listed(id)
        return any("q" in job.state or not job.queue.endswith(here) for job in listed)

    def _is_still_lost(self, id: str, lost: Lost, listed: list[Listed]) -> bool:
        """Is it the lost run that it is said to be in?"""
        host = self._calls.host
        here = any(job.queue.endswith(f"@{host}") for job in listed)
        runs = (each for each in shepherds() if (each.id, each.host) == (id, host))
        return here and all(each.pid == lost.shepherd for each in runs)

    def _reschedule(self, job: BatchJob, lost: Lost, reason: str, *, hold: bool) -> None:
        noted = f"{noted_as(BACK, job.id)}={self._calls.host}"
        noted = f"{noted},{reason_noted(job.id, reason, job.restarts + 1)}"
        words = ("-h", "us" if hold else "s", "-ac", noted, job.id)
        self._calls("qalter", *words, purpose=f"holding job {job.id}")
        said = self._calls("qmod", "-rj", job.id, purpose=f"queueing job {job.id} again")
        if REFUSED in said:
            self._release(job.id, lost)
            raise stays(NOT_AGAIN)
        if RESCHEDULED not in said:
            raise EncampError(
                Code.WRONG_STATE, f"Grid Engine says: {said.strip()[:200]}.", transient=True
            )

    def _release(self, id: str, lost: Lost) -> None:
        lift = () if lost.was_held else ("-h", "S")
        words = (*lift, "-ac", f"{noted_as(BACK, id)}={OVER}", id)
        self._calls("qalter", *words, purpose=f"having job {id} begin again")

    def _is_told(self, lost: Lost) -> bool:
        """Has the master acknowledged the end of the lost run?"""
        place = Path(lost.directory)
        try:
            ended = (place / EXIT_STATUS).stat().st_mtime
        except OSError:
            return not place.exists()
        return time.time() - ended > KEPT and self._keeps_directories()

    def _keeps_directories(self) -> bool:
        for where in ("global", self._calls.host):
            with suppress(EncampError):  # A host need not have settings of its own.
                text = self._calls("qconf", "-sconf", where, purpose="asking for its settings")
                for values in read_values(text):
                    if KEEPS.search(values.get("execd_params", "")):
                        return True
        return False


def _not_told(id: str) -> EndingError:
    return EndingError(f"Grid Engine has not cleared away the lost run of job {id} yet.")
