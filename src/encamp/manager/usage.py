"""What each owner has used of the site, written down now and then: sharing goes on after a restart
as it was."""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec

from encamp.core.step import Core
from encamp.manager.store.store import Store
from encamp.model.errors import EncampError

log = logging.getLogger(__name__)

USAGE = "usage"
"""Its key in the store."""
INTERVAL = 60.0


class Used(msgspec.Struct, frozen=True):
    at: float
    """When it was written down."""
    seconds: dict[str, float]
    """Of processors, by owner."""


class Usage:
    def __init__(self, core: Core, store: Store) -> None:
        self._core = core
        self._store = store
        self._written: dict[str, float] = {}

    async def recall(self) -> None:
        """What a former manager wrote down."""
        kept = await self._store.kept(USAGE)
        if kept is None:
            return
        try:
            used = msgspec.msgpack.decode(kept, type=Used)
        except msgspec.MsgspecError:
            log.warning("What a former manager wrote down of its site's use is damaged.")
            return
        self._core.placement.recall_usage(used.seconds, min(used.at, time.time()))

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            await self.write()

    async def write(self) -> None:
        now = time.time()
        seconds = self._core.placement.usage(now)
        if seconds == self._written:
            return
        try:
            await self._store.keep(USAGE, msgspec.msgpack.encode(Used(now, seconds)))
            self._written = seconds
        except EncampError as error:
            log.warning("What everybody has used could not be written down: %s", error)
