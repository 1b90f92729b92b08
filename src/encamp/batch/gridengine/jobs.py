"""What Grid Engine's master says of jobs."""

from __future__ import annotations

import math
import re
import time

from encamp.batch.gridengine.answers import (
    Detail,
    Listed,
    read_begins,
    read_detail,
    read_jobs,
    read_values,
)
from encamp.batch.gridengine.calls import Calls
from encamp.batch.gridengine.shepherd import Shepherd
from encamp.model.errors import Code, EncampError

QUEUES_LAST = 60.0
"""Seconds for which what a queue says of running jobs again is remembered."""
EVERYBODY = "*"
MOST_ASKED = 500
"""Jobs that the master is asked about at once."""
LONGEST_REASON = 400

WHY, RESTARTS = "encamp", "encamp_restarts"
"""Where a job's context says why it was given back, and how often."""


class Jobs:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._reruns: dict[str, tuple[float, bool]] = {}

    def detail(self, id: str) -> Detail | None:
        """None: there is no such job."""
        job = id.partition(".")[0]
        return read_detail(self._calls("qstat", "-xml", "-j", job, purpose=f"asking for job {id}"))

    def detail_if_it_answers(self, id: str) -> Detail | None:
        """A job that was sent here runs, whether or not its master is there at the moment, and can
        be understood."""
        try:
            return self.detail(id)
        except EncampError as error:
            if error.transient or error.code in (Code.INPUT_MISSING, Code.PROTOCOL):
                return None
            raise

    def all(self, *options: str, owner: str = EVERYBODY) -> list[Listed]:
        words = ("-u", owner, "-r", "-xml", *options)
        return list(read_jobs(self._calls("qstat", *words, purpose="looking at the queue")))

    def listed(self, id: str, *options: str, owner: str = EVERYBODY) -> list[Listed]:
        number, _, task = id.partition(".")
        jobs = self.all(*options, owner=owner)
        return [job for job in jobs if job.id == number and job.has(task)]

    def later(self) -> set[str]:
        """Those that may begin only at a time that is to come. Grid Engine lists all that were
        given a time, and of each it says which."""
        given = list(dict.fromkeys(job.id for job in self.all("-s", "ha")))
        if not given:
            return set()
        words = ("-xml", "-j", ",".join(given[:MOST_ASKED]))
        begins = read_begins(self._calls("qstat", *words, purpose="asking when jobs may begin"))
        now = time.time()
        return {id for id in given if begins.get(id, math.inf) > now}

    def may_run_again(self, shepherd: Shepherd, detail: Detail) -> bool:
        if detail.attended:
            return False
        if detail.rerun is not None:
            return detail.rerun
        queue = f"{shepherd.config.get('queue', '')}@{self._calls.host}"
        asked, rerun = self._reruns.get(queue, (0.0, False))
        if time.monotonic() - asked > QUEUES_LAST or not asked:
            text = self._calls("qconf", "-sq", queue, purpose=f"asking about {queue}")
            rerun = any(values.get("rerun") == "TRUE" for values in read_values(text))
            self._reruns[queue] = (time.monotonic(), rerun)
        return rerun

    def may_run_again_if_known(self, shepherd: Shepherd, detail: Detail | None) -> bool | None:
        if shepherd.is_attended and not shepherd.part:
            return False
        if detail is None:
            return None
        try:
            return self.may_run_again(shepherd, detail)
        except EncampError as error:
            if error.transient:
                return None
            raise


def restarts_of(shepherd: Shepherd, detail: Detail | None) -> int:
    """Grid Engine tells only that there were any; how many is what we have noted."""
    if not shepherd.restarted:
        return 0
    noted = "" if detail is None else detail.context.get(noted_as(RESTARTS, shepherd.id), "")
    return max(1, int(noted)) if re.fullmatch(r"[0-9]{1,5}", noted) else 1


def reason_noted(id: str, reason: str, restarts: int) -> str:
    """What to add to a job's context, where its user reads it: `qstat -j ID`."""
    why = f"{noted_as(WHY, id)}={escaped(reason)}"
    return f"{why},{noted_as(RESTARTS, id)}={restarts}"


def noted_as(name: str, id: str) -> str:
    """The tasks of an array share one context."""
    task = id.partition(".")[2]
    return f"{name}_{task}" if task else name


def escaped(reason: str) -> str:
    """A reason as a value of a context: nothing in it can end the value, or begin another, or hide
    the end of it (as quotes do)."""
    plain = reason.replace(",", ";").replace("=", ":").replace("'", "").replace('"', "")
    return re.sub(r"[^A-Za-z0-9 ./:;()+-]+", " ", plain)[:LONGEST_REASON].strip() or "given back"
