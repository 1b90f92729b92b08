"""Going on with the requests that a former manager left, from what it wrote down.

It may have died between any two of its steps. What it has written of a request, and of the commands
for its machines, says how far it came; what was not begun then is begun now, by the same id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from encamp.core.happenings import Happening, PartMoved, Remembered
from encamp.core.step import Core
from encamp.manager.dispatching import Dispatcher
from encamp.manager.parts import RUN, part_id, part_moved
from encamp.manager.placing import BEGUN, Placing
from encamp.manager.requests import Requests
from encamp.manager.store.store import Store
from encamp.manager.writing import FIRST_PAUSE, LONGEST_PAUSE
from encamp.model.command import CommandState
from encamp.model.errors import Code, EncampError
from encamp.model.request import Part, PartState, RequestRecord, RequestState, claim_id

log = logging.getLogger(__name__)

IN_ONE_GO = 100
"""Requests that are remembered before others get a turn."""


class Successor:
    def __init__(
        self,
        core: Core,
        store: Store,
        dispatcher: Dispatcher,
        placing: Placing,
        requests: Requests,
        happened: Callable[[Happening], None],
    ) -> None:
        self._core = core
        self._store = store
        self._dispatcher = dispatcher
        self._placing = placing
        self._requests = requests
        self._happened = happened
        self._begun: list[tuple[str, int]] = []
        """The requests that had come so far, and at which attempt."""
        self._finding: set[asyncio.Task[None]] = set()

    async def remember(self) -> None:
        """All that are not over; before any host joins."""
        number = 0
        async for record in self._store.requests_under_way():
            number += 1
            if number % IN_ONE_GO == 0:
                await asyncio.sleep(0)  # There may be very many.
            self._requests.standing.moved(record)
            self._happened(Remembered(record))
            if record.state in BEGUN:
                self._placing.inherited.add(record.request.id)
                self._begun.append((record.request.id, record.attempt))

    async def go_on(self) -> None:
        """When it is known who is there, and the core goes on with what it remembers: what hosts
        have told since it was written down."""
        names = [_name(record, part) for record in self._left() for part in record.parts]
        pause = FIRST_PAUSE
        while True:
            try:
                await self._stop_what_is_stale()
                await self._tell(names)
                await self._settle_lost()
                return
            except EncampError as error:
                log.warning("It is not known how far requests have come: %s", error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _tell(self, names: list[str]) -> None:
        for command in await self._store.known_commands(names):
            moved = part_moved(command)
            if moved is not None:
                self._happened(moved)

    async def _settle_lost(self) -> None:
        """How commands of requests have ended that were given up as lost: a host may have told so,
        and nobody had the time to write down what that means."""
        names = [
            _name(record, part)
            async for record in self._store.lost_requests()
            for part in record.parts
        ]
        for command in await self._store.known_commands(names):
            moved = part_moved(command) if command.state is not CommandState.LOST else None
            if moved is not None and moved.state is PartState.OVER:
                await self._find_out(moved)

    def _left(self) -> list[RequestRecord]:
        """Those that are still as they were."""
        found = []
        for request, attempt in self._begun:
            record = self._core.placement.records.get(request)
            if record is not None and record.attempt == attempt and record.state in BEGUN:
                found.append(record)
        return found

    async def _stop_what_is_stale(self) -> None:
        """Nobody waits any more for what belongs to an attempt that was given up."""
        for command in list(self._dispatcher.commands.records.values()):
            part = part_id(command.id) if command.name == RUN else None
            if part is None:
                continue
            record = self._core.placement.records.get(part.request)
            if record is not None and record.attempt == part.attempt and record.state in BEGUN:
                self._placing.begun(command)
            else:
                await self._dispatcher.stop(command)

    def find_out(self, moved: PartMoved) -> None:
        """There is news of a request that nobody knows here: it may have been given up as lost."""
        task = asyncio.create_task(self._find_out(moved))
        self._finding.add(task)
        task.add_done_callback(self._finding.discard)

    async def _find_out(self, moved: PartMoved) -> None:
        try:
            record = await self._lost(moved.request)
        except EncampError as error:
            log.warning("What became of request %s is not known: %s", moved.request, error)
            return
        if record is not None and record.attempt == moved.attempt:
            self._happened(Remembered(record))
            self._happened(moved)

    async def _lost(self, request: str) -> RequestRecord | None:
        try:
            record = await self._requests.look(request)
        except EncampError as error:
            if error.code is not Code.USAGE:
                raise
            return None
        exact = record.request.id == request
        return record if exact and record.state is RequestState.LOST else None

    async def close(self) -> None:
        for task in self._finding:
            task.cancel()
        await asyncio.gather(*self._finding, return_exceptions=True)


def _name(record: RequestRecord, part: Part) -> str:
    return claim_id(record.request.id, part.number, record.attempt)
