"""How a host stands towards its batch system, for people and for programs."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import closing

import msgspec

from encamp.agent.bait.door import DOOR
from encamp.model.batch import Bait, BaitState, BatchSettings
from encamp.model.batch_record import BatchRecord
from encamp.model.errors import EncampError

MEANING = {
    BaitState.OPEN: "open: jobs may come",
    BaitState.FULL: "closed by the agent",
    BaitState.CLOSED: "closed by an administrator",
    BaitState.UNKNOWN: "unknown",
}


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How this host stands."""

    bait: Bait
    door: bool
    """Does somebody answer at the door that starters come to?"""


def standing(settings: BatchSettings) -> Standing:
    from encamp.batch.adapters import open_batch_system

    try:
        bait = open_batch_system(settings).bait()
    except EncampError as error:
        bait = Bait(state=BaitState.UNKNOWN, reason=str(error))
    return Standing(bait=bait, door=_answers())


def _answers() -> bool:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as tried:
        tried.settimeout(5)
        try:
            tried.connect(str(DOOR))
        except OSError:
            return False
        return True


def jobs_here() -> list[BatchRecord]:
    """Those that are under way. Ordinary users have their own told by the agent."""
    from encamp.agent.bait.records import found
    from encamp.cli.batch_jobs import agent_door
    from encamp.door.client import ask
    from encamp.door.questions import AskBatchJobs
    from encamp.home import default_home

    if os.geteuid() == 0:
        return found(default_home(), under_way=True)
    try:
        return list(ask(agent_door(), AskBatchJobs(under_way=True), BatchRecord))
    except EncampError:
        return []


def print_standing(
    found: Standing, settings: BatchSettings, jobs: Sequence[BatchRecord], *, as_json: bool
) -> None:
    if as_json:
        from encamp.cli.machines import print_json

        print_json(
            {
                "system": settings.system,
                "state": found.bait.state,
                "reason": found.bait.reason,
                "door": found.door,
                "jobs": list(jobs),
            }
        )
        return
    from encamp.cli.tables import ago, show, table

    facts = table("", "")
    facts.show_header = False
    reason = f": {found.bait.reason}" if found.bait.reason else ""
    facts.add_row("batch system", settings.system)
    facts.add_row("this host", f"{MEANING[found.bait.state]}{reason}")
    answer = "an agent answers" if found.door else "nobody answers: 'encamp agent --alone' does"
    facts.add_row("door", f"{DOOR}: {answer}")
    facts.add_row("jobs here" if os.geteuid() == 0 else "your jobs here", str(len(jobs)))
    show(facts)
    if jobs:
        print()
        rows = table("job", "user", "environment", "state", "machine", "since", whole=("job",))
        for job in jobs:
            state = job.outcome.value
            rows.add_row(
                job.id,
                job.user,
                job.environment,
                state,
                job.machine[:8],
                ago(job.begun or job.came),
            )
        show(rows)
