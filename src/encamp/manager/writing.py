"""Writing down how far requests have come. What is decided while the store is busy is written
together, and what follows from it is done when it is on the disk."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from encamp.core.actions import BeginPart, EndPart
from encamp.manager.following import Followers
from encamp.manager.recording import Recorder, Signal
from encamp.manager.store.requests import changes
from encamp.manager.store.store import Store
from encamp.model.errors import Code, EncampError
from encamp.model.event import EventKind
from encamp.model.request import RequestRecord, RequestState

log = logging.getLogger(__name__)

LATER = 1.0
"""Seconds after which what nobody waits for is written."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0

UNHURRIED = frozenset({RequestState.WAITING, RequestState.CLAIMING})
"""What is lost if these are not written is found out again: nothing begins before more is."""

Following = BeginPart | EndPart


class Writing:
    def __init__(self, store: Store, recorder: Recorder, do: Callable[[Following], None]) -> None:
        """`do`: called with what was to wait, when it need not any more."""
        self._store = store
        self._recorder = recorder
        self._do = do
        self._unwritten: dict[str, RequestRecord] = {}
        self._writing: dict[str, RequestRecord] = {}
        self._after: list[Following] = []
        """What has to wait until the unwritten is written."""
        self._any = asyncio.Event()
        self._hurry = asyncio.Event()
        self._written = Signal()
        self.followers = Followers()
        """Of requests."""

    def take(self, record: RequestRecord) -> None:
        request = record.request.id
        self._unwritten[request] = record
        self._any.set()
        if record.state in UNHURRIED and not record.to_stop:
            self.followers.tell(request)
        else:
            self._hurry.set()

    def then(self, action: Following) -> None:
        """Have something done, when all that was taken by now is written."""
        self._after.append(action)
        self._any.set()
        self._hurry.set()

    def unwritten(self, request: str) -> RequestRecord | None:
        """How far a request has come, if the store may not know that yet."""
        return self._unwritten.get(request) or self._writing.get(request)

    async def written(self, request: str) -> None:
        """Wait until all that is decided of a request by now is on the disk."""
        self._hurry.set()
        while self.unwritten(request) is not None:
            self._hurry.set()
            await self._written.wait()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._any.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LATER):
                    await self._hurry.wait()
            await self._write_all()

    async def _write_all(self) -> None:
        self._hurry.clear()
        self._any.clear()
        self._writing, self._unwritten = self._unwritten, {}
        after, self._after = self._after, []
        await self._write(list(self._writing.values()))
        done, self._writing = self._writing, {}
        for request in done:
            self.followers.tell(request)
        self._written.set()
        for action in after:
            self._do(action)

    async def _write(self, records: list[RequestRecord]) -> None:
        """However long it takes: what follows is not done without."""
        pause = FIRST_PAUSE
        while records:
            try:
                await self._store.write_requests(records)
                return
            except EncampError as error:
                if error.code is Code.USAGE:
                    records = self._writable(records)
                    continue
                self._recorder.trouble(
                    EventKind.STORE_TROUBLE,
                    f"What became of {len(records)} requests cannot be written down: {error}",
                    "",
                )
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    @staticmethod
    def _writable(records: list[RequestRecord]) -> list[RequestRecord]:
        """Without those that no document can hold: one of them must not keep all others back."""
        kept = []
        for record in records:
            try:
                changes([record])
            except EncampError as error:
                log.error("Request %s: %s %s", record.request.id, error, error.detail)
            else:
                kept.append(record)
        return kept
