"""How jobs are listed."""

from __future__ import annotations

import time

from encamp.cli.asking import asked
from encamp.cli.cleaning import remark
from encamp.cli.listing import show_list
from encamp.cli.requests import short
from encamp.cli.tables import ago, some
from encamp.door.questions import AskRequests
from encamp.model.request import REQUEST_OVER, RequestRecord

COLUMNS = ("id", "owner", "environment", "state", "host", "since", "command", "reason")


def list_jobs(everything: bool, last: int, *, as_json: bool) -> None:
    from encamp.cli.machines import print_json

    # One more than is shown tells that there are more.
    found = asked(AskRequests(last=last + 1, under_way=not everything), RequestRecord)
    if len(found) > last:
        found = found[:last]
        remark(f"There are more than the latest {last}: --last N lists more of them.")
    if as_json:
        print_json(found)
        return
    if not found:
        more = "" if everything else " 'encamp jobs --all' lists those that are over."
        print(f"Nothing waits or runs.{more}")
        return
    show_list(COLUMNS, [_row(record) for record in found], below=("reason", "command"))


def _row(record: RequestRecord) -> tuple[str, ...]:
    request = record.request
    hosts = list(dict.fromkeys(part.host for part in record.parts))
    return (
        short(request.id),
        request.owner,
        request.environment + (f" x{request.count}" if request.count > 1 else ""),
        state(record),
        some(hosts, 2),
        ago(record.changed or request.submitted, time.time()),
        what(record),
        record.reason.sentence,
    )


def state(record: RequestRecord) -> str:
    if record.exit_code is not None and record.state in REQUEST_OVER:
        return f"{record.state.value} ({record.exit_code})"
    return record.state.value


def what(record: RequestRecord) -> str:
    """What it is, in a few words: its label, or what it runs."""
    request = record.request
    if request.job is None:
        words = f"machine {request.machine.name}" if request.machine.name else "machine"
    else:
        words = " ".join(request.job.command.arguments)
    shortened = words if len(words) <= 40 else f"{words[:37]}..."
    return f"{request.label}: {shortened}" if request.label else shortened
