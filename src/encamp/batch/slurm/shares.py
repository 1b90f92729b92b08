"""What a job that runs on several nodes was granted on one of them: only scontrol tells."""

from __future__ import annotations

import re

from encamp.batch.slurm.hostlist import expand
from encamp.batch.slurm.queue import Entry, unreadable
from encamp.model.size import MIB

SHARE = re.compile(r"\s*Nodes=(\S+) CPU_IDs=([0-9,-]+) Mem=(\d+) GRES=\S*")


def share(said: str, entry: Entry, node: str) -> tuple[int, int]:
    """Processors and bytes on this node, of what `scontrol show job -d -o` printed.

    What its user has written comes before what was granted, and may look the same; but it is known
    from elsewhere, and passed over."""
    begin = re.compile(
        rf"(?:^|\n)JobId={entry.number} .*?JobName={re.escape(entry.name)} UserId=\S+"
        rf"\({entry.uid}\) .*?Account={re.escape(entry.account or '(null)')} QOS=.*? JOB_GRES=\S* "
    )
    found = begin.search(said)
    at = found.end() if found else len(said)
    while match := SHARE.match(said, at):
        if node in expand(match[1]):
            return count(match[2]), int(match[3]) * MIB
        at = match.end()
    raise unreadable(said)


def count(ids: str) -> int:
    """Of `0-1,4`, three."""
    total = 0
    for one in ids.split(","):
        first, _, last = one.partition("-")
        total += int(last or first) - int(first) + 1
    return total
