"""Jobs of a batch system that hosts have taken: asked of the manager, or where there is none, of
this host's agent."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from encamp.cli.asking import asked_for_two
from encamp.cli.listing import show_list
from encamp.cli.site_door import is_told_where
from encamp.cli.tables import SHORT_ID, ago, clean
from encamp.door.client import UnansweredError, ask
from encamp.door.places import AGENT_DOOR
from encamp.door.questions import AskBatchJobs, LeftOut
from encamp.model.batch_record import UNDER_WAY, BatchRecord, Outcome

COLUMNS = ("job", "user", "environment", "state", "host", "machine", "since", "name", "reason")
AGENT_DOOR_VARIABLE = "ENCAMP_AGENT_DOOR"


def list_batch_jobs(everything: bool, last: int, *, as_json: bool) -> None:
    from encamp.cli.machines import print_json

    found, left_out = records_told(AskBatchJobs(last=last, under_way=not everything))
    for one in left_out:
        sentence = clean(f"{one.host} {one.reason}")
        print(f"encamp: {sentence}. What came there is not told.", file=sys.stderr)
    if as_json:
        print_json(found)
        return
    if not found:
        more = "" if everything else " 'encamp jobs --batch --all' lists those that are over."
        print(f"No job of a batch system is in a machine.{more}")
        return
    show_list(COLUMNS, [_row(record) for record in found], below=("reason", "name", "machine"))


def records_told(question: AskBatchJobs) -> tuple[list[BatchRecord], list[LeftOut]]:
    """What the manager knows; where there is none, this host's agent."""
    try:
        answer = asked_for_two(question, BatchRecord, LeftOut)
    except UnansweredError as error:
        near = agent_door()
        if is_told_where():
            raise
        if not near.is_socket():
            error.hint = (
                "Without a manager, each host with an agent tells of its own jobs: ask there. With"
                f" one, all are told here. {error.hint}"
            )
            raise
        return list(ask(near, question, BatchRecord)), []
    records = [one for one in answer if isinstance(one, BatchRecord)]
    return records, [one for one in answer if isinstance(one, LeftOut)]


def agent_door() -> Path:
    chosen = os.environ.get(AGENT_DOOR_VARIABLE)
    return Path(chosen).absolute() if chosen else AGENT_DOOR


def _row(record: BatchRecord) -> tuple[str, ...]:
    since = record.ended or record.begun or record.came
    return (
        record.full_id,
        record.user,
        record.environment,
        state(record),
        record.host,
        record.machine[:SHORT_ID],
        ago(since, time.time()),
        record.name,
        record.reason,
    )


def state(record: BatchRecord) -> str:
    words = record.outcome.value
    if record.outcome in UNDER_WAY:
        return words + (f" (try {record.tries})" if record.tries > 1 else "")
    if record.signal is not None:
        return f"{words} (signal {record.signal})"
    if record.exit_code is not None and record.outcome in (Outcome.DONE, Outcome.FAILED):
        return f"{words} ({record.exit_code})"
    return words
