"""Jobs for baits that Slurm has sent to worker nodes: machines themselves, which make no others.
There they wait, and have not begun. They are queued again, and sent to such nodes no more."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping

from encamp.batch.slurm.adapter import REST, Slurm
from encamp.batch.slurm.calls import Calls
from encamp.batch.slurm.hostlist import expand
from encamp.batch.slurm.names import noted
from encamp.batch.slurm.queue import Entry
from encamp.model.batch import BatchJob
from encamp.model.errors import EncampError

ENDED, LOOK = 10.0, 0.2
"""Seconds in which a job that was queued again has ended, and between two looks. If it takes
longer, it begins when Slurm lets it, and may come here once more."""

LOG = logging.getLogger(__name__)


class Sending:
    def __init__(self, slurm: Slurm, call: Calls) -> None:
        self._slurm = slurm
        self._call = call

    def send_on(self, nodes: Mapping[str, Collection[str]], avoided: Collection[str]) -> None:
        """`nodes`: where to look, and the environments that each is good for. `avoided`: all of
        their kind."""
        strays = [entry for entry in self._slurm.running_on(nodes) if _is_stray(entry, nodes)]
        sent = [entry for entry in strays if self._is_sent(entry)]
        end = time.monotonic() + ENDED
        while sent and time.monotonic() < end:
            time.sleep(LOOK)
            sent = [entry for entry in sent if not self._is_let_go(entry, avoided)]

    def _is_sent(self, entry: Entry) -> bool:
        where = entry.hosts[0]
        job = BatchJob(
            system=self._slurm.name,
            id=entry.number,
            uid=entry.uid,
            restarts=entry.restarts,
            requeue=True,
            environment=noted(entry),
        )
        try:
            if not entry.requeue:  # It may not be begun twice, and has not been once.
                self._update(entry, "Requeue=1")
            self._slurm.queue_again(job, f"it was sent to worker node {where}", hold=False)
        except EncampError as error:
            LOG.warning("Job %s waits on node %s for nothing: %s", entry.id, where, error)
            return False
        LOG.info("Job %s is queued again: it was sent to worker node %s.", entry.id, where)
        return True

    def _is_let_go(self, entry: Entry, avoided: Collection[str]) -> bool:
        try:
            now = self._slurm.look(entry.number)
            if now is None or now.state != "PENDING":
                return now is None or now.state != "COMPLETING"
            nodes = sorted({*avoided, *self._excluded(entry)})
            again = [] if entry.requeue else ["Requeue=0"]
            words = (f"ExcNodeList={','.join(nodes)}", f"StartTime=now+{REST}", *again)
            self._update(entry, *words)
        except EncampError as error:
            LOG.warning("Job %s may be sent to a worker node again: %s", entry.id, error)
        return True

    def _excluded(self, entry: Entry) -> tuple[str, ...]:
        """Where its user does not want it, or we did not before."""
        words = ("--noheader", f"--jobs={entry.number}", "--format=%x")
        said = self._call("squeue", *words, purpose=f"asking about job {entry.id}").strip()
        return expand(said) if said else ()

    def _update(self, entry: Entry, *words: str) -> None:
        purpose = f"sending job {entry.id} to another node"
        self._call("scontrol", "update", f"JobId={entry.number}", *words, purpose=purpose)


def _is_stray(entry: Entry, nodes: Mapping[str, Collection[str]]) -> bool:
    """A script that has begun, on a node which can do that, is disturbed only if it may be begun
    twice."""
    name, hosts = noted(entry), entry.hosts
    if not name or not entry.batch or not hosts:
        return False
    wrong = [host for host in hosts if host in nodes and name not in nodes[host]]
    return bool(wrong) and (hosts[0] in wrong or entry.requeue)
