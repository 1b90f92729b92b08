"""Answering what became of jobs of batch systems: hosts that take them are asked, each of its own.
Everybody sees their own jobs, administrators all."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from encamp.bus.messages import JobsWanted
from encamp.core.picture import joined
from encamp.door import questions
from encamp.door.peer import Peer
from encamp.manager.answering_hosts import hosts_named
from encamp.manager.answering_requests import whose
from encamp.manager.taking import is_moment
from encamp.model.batch_record import BatchRecord
from encamp.model.errors import Code, EncampError
from encamp.model.host import Host

if TYPE_CHECKING:
    from encamp.manager.daemon import Manager

Answer = AsyncIterator[msgspec.Struct]

BAIT = "bait"
"""The property that hosts have which take jobs of a batch system."""
PATIENCE = 5.0
"""Seconds in which a host tells what it knows."""
MOST = 10_000
LONGEST_ID = 100
LONGEST_TEXT = 2000


async def ask_batch_jobs(manager: Manager, peer: Peer, asked: questions.AskBatchJobs) -> Answer:
    if not 0 < asked.last <= MOST:
        raise EncampError(Code.USAGE, f"Jobs are told from 1 to {MOST} at a time.")
    owner = whose(peer)
    wanted = JobsWanted(
        user=owner, id=asked.id[:LONGEST_ID], last=asked.last, under_way=asked.under_way
    )
    baits = {host.name: host for host in hosts_named(manager, asked.hosts) if takes_jobs(host)}
    told, silent = await manager.querier.jobs(sorted(baits), wanted, PATIENCE)
    for name in silent:
        yield questions.LeftOut(name, _why_silent(baits[name]))
    found = [
        believed(record, baits[name])
        for name, records in told.items()
        for record in records[: asked.last]
        if owner in ("", record.user)
    ]
    found.sort(key=lambda record: (-record.came, record.host, record.key))
    for record in found[: asked.last]:
        yield record


def takes_jobs(host: Host) -> bool:
    return any(definition.name == BAIT for definition in host.properties)


def _why_silent(host: Host) -> str:
    if joined(host):
        return f"has not answered for {PATIENCE:.0f} seconds"
    return f"is {host.presence.value}" + (f": {host.reason}" if host.reason else "")


def believed(record: BatchRecord, host: Host) -> BatchRecord:
    """No host speaks for another, and what it says is no longer than it can be. Times are by the
    manager's clock."""
    texts = {
        name: value[:LONGEST_TEXT]
        for name in record.__struct_fields__
        if isinstance(value := getattr(record, name), str)
    }
    times = {}
    for name in ("came", "begun", "ended"):
        at = getattr(record, name)
        moved = at - host.clock_offset if at else 0.0
        times[name] = moved if is_moment(moved) else 0.0
    seconds = record.cpu_seconds
    return msgspec.structs.replace(
        record,
        **{**texts, **times, "host": host.name},
        cpu_seconds=seconds if seconds is not None and math.isfinite(seconds) else None,
    )
