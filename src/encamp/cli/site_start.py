"""Starting machines through the site."""

from __future__ import annotations

import asyncio
import signal
from contextlib import aclosing, suppress

from encamp.cli import requests
from encamp.cli.bar import Bar
from encamp.cli.steering import with_signals
from encamp.cli.wishes import Wishes, request_of
from encamp.door.client import AnyDoor
from encamp.model.errors import EncampError
from encamp.model.job import MachineRequest
from encamp.model.request import REQUEST_OVER, Request, RequestRecord, RequestState


def start_through_site(
    door: AnyDoor, machine: MachineRequest, wishes: Wishes, *, as_json: bool
) -> int:
    record = asyncio.run(_start(door, request_of(wishes, machine, None)))
    if as_json:
        from encamp.cli.machines import print_json

        print_json(record)
    else:
        for part in record.parts:
            print(machine.name or part.machine)
    return 0


async def _start(door: AnyDoor, request: Request) -> RequestRecord:
    starting = _Starting(door, request)
    return await with_signals(starting.run(), starting)


class _Starting:
    """Until all machines are there. If that does not come about, none of them stays."""

    started = False

    def __init__(self, door: AnyDoor, request: Request) -> None:
        self._door = door
        self._request = request

    async def run(self) -> RequestRecord:
        record: RequestRecord | None = None
        try:
            waited = False
            with Bar() as bar:
                record = await requests.submit(self._door, self._request)
                async with aclosing(requests.follow(self._door, record.request.id)) as records:
                    async for record in records:
                        if record.state is RequestState.RUNNING:
                            return record
                        if record.state in REQUEST_OVER:
                            break
                        waited = requests.tell(record, bar, waited=waited)
            raise requests.verdict(record)
        except BaseException:
            if record is not None and record.state not in REQUEST_OVER:
                with suppress(EncampError):
                    await requests.end(self._door, record.request.id)
            raise

    def signal(self, number: signal.Signals) -> None:
        pass

    def resize(self, rows: int, columns: int) -> None:
        pass
