"""Jobs for baits that Slurm has sent to worker nodes: machines themselves, which make no others.
There they wait, or cannot be begun for want of the site's directories. They are queued again, and
sent to such nodes no more."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from encamp.batch.slurm.adapter import Slurm
from encamp.batch.slurm.calls import Calls
from encamp.batch.slurm.hostlist import expand
from encamp.batch.slurm.names import ONCE, may_begin_again, noted
from encamp.batch.slurm.node import MARK
from encamp.batch.slurm.queue import Entry
from encamp.model.batch import BatchJob
from encamp.model.errors import EncampError

NOT_LAUNCHED = "JobLaunchFailure"
"""Why a job has failed that its node could not even begin."""

LOG = logging.getLogger(__name__)


class Sending:
    def __init__(self, slurm: Slurm, call: Calls) -> None:
        self._slurm = slurm
        self._call = call

    def send_on(
        self, nodes: Mapping[str, Collection[str]], avoided: Collection[str], known: Collection[str]
    ) -> None:
        """`nodes`: where to look, and the environments that each is good for. `avoided`: all of
        their kind; `known`: all that Slurm has."""
        for entry in self._slurm.seen_on(nodes):
            where = _wrong_place(entry, nodes)
            if where:
                try:
                    self._send_on(entry, where, avoided, known)
                except EncampError as error:
                    LOG.warning("Job %s is on worker node %s: %s", entry.id, where, _told(error))

    def _send_on(
        self, entry: Entry, where: str, avoided: Collection[str], known: Collection[str]
    ) -> None:
        """What may not be queued again is allowed to for as long as that takes: it has not begun.
        Should we be killed over it, baits go by what is noted first."""
        once = not may_begin_again(entry)
        why = f"it was sent to worker node {where}{f'; {ONCE}' if once else ''}"
        job = BatchJob(
            system=self._slurm.name,
            id=_called(entry),
            uid=entry.uid,
            restarts=entry.restarts,
            requeue=True,
            environment=noted(entry),
        )
        if once:
            self._update(entry, f"AdminComment=env={noted(entry)}; {MARK}{why}")
            self._update(entry, "Requeue=1")
        try:
            if entry.state == "RUNNING":
                self._slurm.queue_again(job, why, hold=False)
            else:
                self._slurm.bring_back_ended(entry, job, why, hold=False)
        finally:
            if once:
                self._update(entry, "Requeue=0")
        LOG.info("Job %s is queued again: %s.", entry.id, why)
        there = ({*avoided} | {*self._excluded(entry)}) & {*known}
        self._update(entry, f"ExcNodeList={','.join(sorted(there))}")
        self._slurm.begin_soon(job.id)

    def _excluded(self, entry: Entry) -> tuple[str, ...]:
        """Where its user does not want it, or we did not before."""
        words = ("--noheader", "--states=all", f"--jobs={_called(entry)}", "--format=%x")
        lines = self._call("squeue", *words, purpose=f"asking about job {entry.id}").split()
        return tuple(node for line in lines for node in expand(line))

    def _update(self, entry: Entry, what: str) -> None:
        purpose = f"sending job {entry.id} to another node"
        self._call("scontrol", "update", f"JobId={_called(entry)}", what, purpose=purpose)


def _called(entry: Entry) -> str:
    """The number of an array is that of one of its tasks, too, and means all of them."""
    return entry.id if "_" in entry.id else entry.number


def _wrong_place(entry: Entry, nodes: Mapping[str, Collection[str]]) -> str:
    """The first of its nodes that it cannot run on; empty: it may stay. A script that has begun, on
    a node that can do that, is disturbed only if it may be begun twice."""
    name, hosts = noted(entry), entry.hosts
    wrong = [host for host in hosts if host in nodes and name not in nodes[host]]
    if not name or not entry.batch or not wrong:
        return ""
    if entry.state != "RUNNING":
        return wrong[0] if entry.reason == NOT_LAUNCHED and entry.requeue else ""
    return wrong[0] if hosts[0] in wrong or may_begin_again(entry) else ""


def _told(error: EncampError) -> str:
    return " ".join([error.sentence, *error.detail.split()])
