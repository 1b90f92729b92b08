"""Jobs that somebody waits for at a terminal: as long as they are in the queue, somebody asks after
them. When nobody has for a while, whoever wanted them is gone, and they are given up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from encamp.core.happenings import EndWanted, Happening
from encamp.manager.following import Followers
from encamp.model.request import Request, RequestRecord, RequestState

PATIENCE = 30.0
"""Seconds without anybody asking; a client that has lost its manager comes back sooner."""
LOOK = 5.0
BY = "the manager, since whoever asked for it has gone,"

QUEUED = frozenset({RequestState.WAITING, RequestState.CLAIMING})
"""From then on its host notices by itself whether somebody is there."""


class Attendance:
    def __init__(self, followers: Followers, happened: Callable[[Happening], None]) -> None:
        self._followers = followers
        self._happened = happened
        self._asked: dict[str, float] = {}
        """When somebody last asked after each that is attended, by the clock that never jumps."""

    def opened(self, request: Request) -> None:
        if request.job is not None and not request.detached:
            self._asked[request.id] = time.monotonic()

    def moved(self, record: RequestRecord) -> None:
        if record.state not in QUEUED:
            self._asked.pop(record.request.id, None)
        elif record.request.id not in self._asked:
            self.opened(record.request)

    def asked(self, request: str) -> None:
        """Somebody wants to know how far it is."""
        if request in self._asked:
            self._asked[request] = time.monotonic()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK)
            for request in self.deserted(time.monotonic()):
                self._happened(EndWanted(request, BY))
                await asyncio.sleep(0)  # There may be very many.

    def deserted(self, now: float) -> list[str]:
        """Those that nobody has asked after for too long."""
        found = []
        for request, asked in list(self._asked.items()):
            if self._followers.follows(request):
                self._asked[request] = now
            elif now - asked > PATIENCE:
                del self._asked[request]
                found.append(request)
        return found
