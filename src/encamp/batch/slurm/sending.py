"""Jobs for baits that Slurm has sent to worker nodes: machines themselves, which make no others.
There they wait, or cannot be begun for want of the site's directories. They are queued again, and
sent to such nodes no more."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from encamp.batch.slurm.adapter import Slurm
from encamp.batch.slurm.calls import Calls
from encamp.batch.slurm.hostlist import expand
from encamp.batch.slurm.names import may_begin_again, noted
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
        why = f"it was sent to worker node {where}"
        job = BatchJob(
            system=self._slurm.name,
            id=entry.called,
            uid=entry.uid,
            restarts=entry.restarts,
            requeue=may_begin_again(entry),
            environment=noted(entry),
        )
        returning = self._slurm.returning
        if entry.state == "RUNNING":
            returning.queue_again(job, why, hold=False)
        else:
            returning.bring_back_ended(entry, job, why, hold=False)
        LOG.info("Job %s is queued again: %s.", entry.id, why)
        there = ({*avoided} | {*self._excluded(entry)}) & {*known}
        purpose = f"sending job {entry.id} to another node"
        returning.update(entry, f"ExcNodeList={','.join(sorted(there))}", purpose=purpose)
        returning.begin_soon(job.id)

    def _excluded(self, entry: Entry) -> tuple[str, ...]:
        """Where its user does not want it, or we did not before."""
        words = ("--noheader", "--states=all", f"--jobs={entry.called}", "--format=%x")
        lines = self._call("squeue", *words, purpose=f"asking about job {entry.id}").split()
        return tuple(node for line in lines for node in expand(line))


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
