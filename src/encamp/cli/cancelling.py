"""`encamp cancel`: ending one job, or very many."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress

from encamp.cli import requests
from encamp.cli.asking import as_whom, asked
from encamp.cli.asking import door as manager_door
from encamp.cli.cleaning import remark
from encamp.door.client import AnyDoor
from encamp.door.questions import AskRequests
from encamp.model.errors import EncampError
from encamp.model.request import REQUEST_OVER, RequestRecord, RequestState

ENDING = 10.0
"""Seconds in which what is cancelled should be over."""
AT_ONCE = 32
"""Of the questions that one user may have open at a door, half."""
MOST = 1_000_000


def own(*, waiting_only: bool) -> list[str]:
    """Ids of whoever asks, administrators too: those of others are named one by one."""
    me = as_whom()
    return [
        record.request.id
        for record in asked(AskRequests(last=MOST, under_way=True), RequestRecord)
        if record.request.owner == me and (record.state is RequestState.WAITING or not waiting_only)
    ]


async def _until_over(door: AnyDoor, record: RequestRecord) -> RequestRecord:
    """Until it is over, and its machine gone. A host that is away ends it when it is back."""
    if record.state in REQUEST_OVER:
        return record
    with suppress(TimeoutError):
        async with (
            asyncio.timeout(ENDING),
            aclosing(requests.follow(door, record.request.id)) as records,
        ):
            async for news in records:
                record = news
    if record.state not in REQUEST_OVER:
        remark(f"{requests.short(record.request.id)} is still being ended; see 'encamp jobs'.")
    return record


def cancel_all(ids: list[str]) -> None:
    """All are tried; the first that could not be ended is told last."""
    door = manager_door()
    turn = asyncio.Semaphore(AT_ONCE)

    async def cancel(id: str) -> EncampError | None:
        async with turn:
            try:
                ended = await _until_over(door, await requests.end(door, id))
                print(ended.request.id, flush=True)
            except EncampError as error:
                return error
        return None

    async def each() -> list[EncampError | None]:
        return await asyncio.gather(*map(cancel, ids))

    failures = [error for error in asyncio.run(each()) if error is not None]
    for failure in failures[1:]:
        remark(str(failure))
    if failures:
        raise failures[0]
