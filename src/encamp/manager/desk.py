"""All that a manager has for requests, put together: it is told what happens to the site, and sees
to what the core decides about them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from encamp.core.actions import PlacementAction, WriteRequest
from encamp.core.happenings import (
    Happening,
    Joined,
    PartMoved,
    Remembered,
    Reported,
    Submitted,
)
from encamp.manager.attending import Attendance
from encamp.manager.chronicle import Chronicle
from encamp.manager.forsaken import Forsaken
from encamp.manager.parts import part_moved
from encamp.manager.placing import Placing
from encamp.manager.requests import Requests
from encamp.manager.store.store import Store
from encamp.manager.taking_over import Successor
from encamp.manager.usage import Usage
from encamp.manager.vanishing import vanished
from encamp.manager.workplace import Workplace
from encamp.meeting import tickets
from encamp.model.command import OVER, CommandRecord

TICKETS = "tickets"
"""The key in the store of what the tickets to machines are made from."""


async def ticket_key(store: Store) -> bytes:
    """What all managers of a site make its tickets from."""
    key = await store.kept(TICKETS)
    if key is None:
        key = tickets.new_key()
        await store.keep(TICKETS, key)
    return key


class Desk:
    def __init__(self, workplace: Workplace) -> None:
        core, store, happened = workplace.core, workplace.store, workplace.happened
        self._core = core
        self._happened = happened
        self.ticket_key = workplace.ticket_key
        self.placing = Placing(workplace)
        self.writing = self.placing.writing
        self.requests = Requests(core, store, self.writing, workplace.site, happened)
        self.attendance = Attendance(self.writing.followers, happened)
        self.successor = Successor(
            core, store, workplace.dispatcher, self.placing, self.requests, happened
        )
        self._chronicle = Chronicle(workplace.recorder)
        self._usage = Usage(core, store)
        self._forsaken = Forsaken()
        self._store = store

    async def remember(self) -> None:
        """What a former manager has left, before any host joins."""
        await self._usage.recall()
        await self._forsaken.recall(self._store)
        await self.successor.remember()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for work in (self.placing.run(), self.attendance.run(), self._usage.run()):
                tasks.create_task(work)

    async def close(self) -> None:
        await self.requests.close()
        await self.successor.close()

    # ── what happens ─────────────────────────────────────────────────────────────────────────────

    def see(self, happening: Happening) -> list[PartMoved]:
        """Something is about to happen. Returns what follows from it for parts of requests."""
        if isinstance(happening, Submitted):
            self._chronicle.submitted(happening.request)
            self.attendance.opened(happening.request)
        elif isinstance(happening, Remembered):
            self._chronicle.remembered(happening.record)
            self._forsaken.moved(happening.record)
            self.attendance.moved(happening.record)
        elif isinstance(happening, Joined | Reported):
            state = self._core.picture.hosts.get(happening.name)
            before = state.machines if state is not None else ()
            if isinstance(happening, Joined):
                self.placing.take(self._forsaken.found(happening))
            return vanished(happening, before, self.requests.standing.on(happening.name))
        return []

    def take(self, actions: Sequence[PlacementAction]) -> None:
        """What the core has decided."""
        for action in actions:
            if isinstance(action, WriteRequest):
                for watching in (
                    self._chronicle,
                    self.requests.standing,
                    self.attendance,
                    self._forsaken,
                ):
                    watching.moved(action.record)
        self.placing.take(actions)

    def command_moved(self, record: CommandRecord) -> None:
        """A command that makes a machine of a request has got on."""
        moved = part_moved(record)
        if moved is None:
            return
        if moved.request in self._core.placement.records:
            self._happened(moved)
        elif record.state in OVER:
            self.successor.find_out(moved)
