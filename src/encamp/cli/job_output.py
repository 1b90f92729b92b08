"""What jobs left on their hosts, and how they ended."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import aclosing
from functools import partial
from typing import TypeVar

from encamp.cli import requests
from encamp.cli.asking import as_whom
from encamp.cli.asking import door as manager_door
from encamp.cli.caller_files import CallerFiles, for_part
from encamp.cli.cleaning import json_text, remark
from encamp.cli.labelled import Labelled
from encamp.cli.steering import report, with_signals
from encamp.cli.streams import CleanStreams, StandardStreams
from encamp.door.client import AnyDoor
from encamp.door.questions import AskRequests
from encamp.meeting.client import Client
from encamp.meeting.frames import Role
from encamp.model.errors import Code, EncampError
from encamp.model.job import Copy, Outcome
from encamp.model.request import (
    REQUEST_OVER,
    PartState,
    RequestRecord,
    RequestState,
)

T = TypeVar("T")

MET = frozenset({PartState.STARTING, PartState.RUNNING, PartState.OVER})


async def look(door: AnyDoor, id: str) -> RequestRecord:
    if not id:
        raise EncampError(Code.USAGE, "There is no job ''.", "'encamp jobs' lists them.")
    return await requests.one(door, AskRequests(id=id), RequestRecord)


async def _begun(door: AnyDoor, record: RequestRecord) -> RequestRecord:
    """When its hosts can be asked for what it prints, if they ever can."""
    if _has_hosts(record) or record.state in REQUEST_OVER:
        return record
    async with aclosing(requests.follow(door, record.request.id)) as records:
        async for news in records:
            record = news
            if _has_hosts(record):
                break
    return record


def _has_hosts(record: RequestRecord) -> bool:
    return len(record.parts) == record.request.count and all(
        part.state in MET for part in record.parts
    )


async def _interruptible(work: Coroutine[object, object, T]) -> T:
    """Ctrl-C leaves; what was looked at goes on."""
    return await with_signals(work, _Looking())


class _Looking:
    started = False

    def signal(self, number: signal.Signals) -> None:
        pass

    def resize(self, rows: int, columns: int) -> None:
        pass


# ── logs ─────────────────────────────────────────────────────────────────────────────────────────


def show_logs(id: str, *, follow: bool, number: int | None) -> int:
    return asyncio.run(_interruptible(_logs(manager_door(), id, follow=follow, number=number)))


async def _logs(door: AnyDoor, id: str, *, follow: bool, number: int | None) -> int:
    record = await look(door, id)
    request = record.request
    if request.job is None:
        raise EncampError(
            Code.USAGE,
            f"{requests.short(request.id)} is a machine, and runs no command of its own.",
        )
    if not request.detached:
        raise EncampError(
            Code.WRONG_STATE,
            f"What job {requests.short(request.id)} prints goes to whoever runs it; nothing of it"
            " is kept.",
            "Jobs that are run with --detach keep what they print.",
        )
    if follow:
        record = await _begun(door, record)
    if not _has_hosts(record):
        if record.state in REQUEST_OVER:
            raise requests.verdict(record)
        return 0  # It has not begun, and so it has printed nothing.
    role = Role.FOLLOW if follow else Role.WATCH
    numbers = range(request.count) if number is None else [number]
    own = request.owner == await asyncio.to_thread(as_whom)
    streams = StandardStreams() if own else CleanStreams()
    problems: list[str] = []
    try:
        shown = [_show(door, record, one, role, streams, number) for one in numbers]
        for result in await asyncio.gather(*shown, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            problems += result.problems if result is not None else ()
    finally:
        streams.close()
    for problem in dict.fromkeys(problems) or _said(record):
        remark(problem)
    return 0


def _said(record: RequestRecord) -> list[str]:
    """What its hosts have said of a job that is done, beyond its exit code."""
    sentence = record.reason.sentence
    return [sentence] if record.state is RequestState.DONE and sentence else []


async def _show(
    door: AnyDoor,
    record: RequestRecord,
    number: int,
    role: Role,
    streams: StandardStreams,
    chosen: int | None,
) -> Outcome | None:
    ticket = await requests.ticket(door, record, number)
    nothing = CallerFiles((), ())
    if record.request.count == 1 or chosen is not None:
        client = Client(ticket, role, streams=streams, files=nothing)
        return await _met(door, record, number, client)
    labelled = Labelled(streams, number, record.request.count)
    client = Client(ticket, role, streams=labelled, files=nothing)
    outcome = await _met(door, record, number, client)
    await labelled.flush()
    return outcome


async def _met(door: AnyDoor, record: RequestRecord, number: int, client: Client) -> Outcome | None:
    client.renew = partial(requests.ticket, door, record, number)
    return await client.run()


# ── files ────────────────────────────────────────────────────────────────────────────────────────


def fetch_files(id: str, to: str | None) -> int:
    return asyncio.run(_interruptible(_fetch(manager_door(), id, to)))


async def _fetch(door: AnyDoor, id: str, to: str | None) -> int:
    record = await look(door, id)
    request = record.request
    if request.job is None or not request.job.outputs or not request.detached:
        raise EncampError(
            Code.USAGE,
            f"Job {requests.short(request.id)} has no files to fetch.",
            "Those of a job that is run with --detach and --out can be fetched.",
        )
    outputs = request.job.outputs
    own = request.owner == await asyncio.to_thread(as_whom)
    if to is None and not own:
        # They may belong where only the caller can write.
        raise EncampError(
            Code.NOT_PERMITTED,
            f"Job {requests.short(request.id)} is {request.owner}'s, who has said where its files"
            " belong; that is not for others to follow.",
            "Say where you want them: --to DIRECTORY.",
        )
    if to is not None:
        outputs = tuple(Copy(one.source, f"{to.rstrip('/') or '/'}/") for one in outputs)
    record = await _over(door, record)
    if not _has_hosts(record):
        raise requests.verdict(record)
    code = 0
    for number in range(request.count):
        ticket = await requests.ticket(door, record, number)
        theirs = outputs if request.count == 1 else for_part(outputs, number)
        files = CallerFiles((), theirs)
        client = Client(ticket, Role.FETCH, streams=StandardStreams(), files=files)
        if own:
            client.is_fetched = files.all_there
        outcome = await _met(door, record, number, client)
        assert outcome is not None
        outcome = files.judge(outcome)
        report(outcome)
        if outcome.problems:
            code = Code.COPY_FAILED.value
    return code


# ── ends ─────────────────────────────────────────────────────────────────────────────────────────


def wait_for(ids: list[str], *, as_json: bool) -> int:
    records = asyncio.run(_interruptible(_wait(manager_door(), ids)))
    if as_json:
        for record in records:
            print(json_text(record))
    codes = [_exit_code(record) for record in records]
    return max(codes)


async def _wait(door: AnyDoor, ids: list[str]) -> list[RequestRecord]:
    found = [await look(door, id) for id in ids]
    return list(await asyncio.gather(*[_over(door, record) for record in found]))


async def _over(door: AnyDoor, record: RequestRecord) -> RequestRecord:
    if record.state in REQUEST_OVER:
        return record
    async with aclosing(requests.follow(door, record.request.id)) as records:
        async for news in records:
            record = news
    return record


def _exit_code(record: RequestRecord) -> int:
    if record.state is RequestState.DONE:
        for sentence in _said(record):
            remark(f"Job {requests.short(record.request.id)}: {sentence}")
        return record.exit_code or 0
    error = requests.verdict(record)
    remark(str(error))
    return int(error.code.value)
