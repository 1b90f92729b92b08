"""How commands come in, a manager's and the agent's own: room is kept for what they make, they are
written down, and from then on somebody looks after them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from encamp.agent.claims import Claims, Use
from encamp.agent.commands.caretaker import Caretaker
from encamp.agent.commands.directory import Request
from encamp.agent.commands.records import Records
from encamp.agent.commands.tracked import Tracked
from encamp.bus.messages import Claim
from encamp.home import Home

LONGEST_TIMEOUT = 366 * 86400.0
"""Seconds that a command may take."""


class Intake:
    """`news` is called when a command has come in."""

    def __init__(
        self, home: Home, records: Records, caretaker: Caretaker, news: Callable[[], None]
    ) -> None:
        self.claims = Claims(home, self._use, self._machine)
        caretaker.over = self.claims.over
        self._records = records
        self._caretaker = caretaker
        self._news = news
        self._coming: dict[str, asyncio.Task[None]] = {}
        self._claiming = asyncio.Lock()
        self._looking: set[asyncio.Task[None]] = set()

    def prepare(self) -> None:
        """There may be something to do soon."""
        self._caretaker.prepared.prepare()

    async def claim(self, message: Claim) -> None:
        self.prepare()
        async with self._claiming:
            await asyncio.to_thread(self.claims.promise, message)

    async def take(self, request: Request) -> None:
        """It is on the disk when this returns."""
        await self.once(request.id, self._take(request))

    async def arrival(self, id: str) -> bool:
        """Was it just coming in? Then it has come when this returns."""
        coming = self._coming.get(id)
        if coming is None:
            return False
        await asyncio.shield(coming)
        return True

    async def once(self, id: str, work: Coroutine[Any, Any, None]) -> None:
        """Do what is to be done as it comes in."""

        async def done() -> None:
            try:
                await work
            finally:
                del self._coming[id]

        self._coming[id] = asyncio.create_task(done())
        # Whoever asked may lose interest; it is done nevertheless.
        await self.arrival(id)

    async def stop(self, tracked: Tracked) -> None:
        if not tracked.is_over():
            await asyncio.to_thread(tracked.directory.ask_to_stop)
            tracked.to_stop = True
            self._caretaker.look()

    async def close(self) -> None:
        """What is just coming in has come, and what came last is begun, when this returns."""
        await asyncio.gather(*self._coming.values(), return_exceptions=True)
        await asyncio.gather(*self._looking, return_exceptions=True)

    async def _take(self, request: Request) -> None:
        directory = self._records.directory(request.id)
        await asyncio.to_thread(directory.journal, request)
        tracked = Tracked(directory, is_new=True, internal=request.internal)
        self._caretaker.tracked[request.id] = tracked
        if request.internal:
            looking = asyncio.create_task(self._caretaker.look_after(tracked))
            self._looking.add(looking)
            looking.add_done_callback(self._looking.discard)
        self._caretaker.look()
        self._news()

    def _machine(self, id: str) -> str:
        tracked = self._caretaker.tracked.get(id)
        return "" if tracked is None else tracked.stage.machine

    def _use(self, id: str) -> Use:
        """How far the command of a claim is."""
        tracked = self._caretaker.tracked.get(id)
        if id in self._coming or (tracked is not None and not tracked.is_over()):
            return Use.UNDER_WAY
        return Use.OVER if tracked is not None or self._records.is_over(id) else Use.NONE
