"""The manager's store: what must survive a crash, written before it is acted upon."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from sqlalchemy import Connection

from encamp.home import Home
from encamp.manager.store import commands, requests, retention
from encamp.manager.store.address import Address, Database, read_address
from encamp.manager.store.backlog import Backlog
from encamp.manager.store.beginning import begin_tenure
from encamp.manager.store.command_records import CommandRecords
from encamp.manager.store.connecting import Possession
from encamp.manager.store.history import History
from encamp.manager.store.jobs import Work
from encamp.manager.store.request_records import RequestRecords
from encamp.manager.store.small_things import SmallThings
from encamp.manager.store.tenure import SupersededError, Tenure, cut_off
from encamp.manager.store.transactions import transaction
from encamp.manager.store.worker import Worker

PATIENCE = 30.0
"""Seconds that callers wait for a database that does not answer."""
LOOK_ROUND = 0.5
"""Seconds between two looks at whether the tenure still holds."""

T = TypeVar("T")


class Store(CommandRecords, RequestRecords, History, SmallThings):
    """One for each site, and one manager for each store."""

    def __init__(self, tenure: Tenure) -> None:
        """Use `open`."""
        self.tenure = tenure
        self._backlog = Backlog()
        self._prepared = False
        self.begun = 0
        """The number of the latest command that was in it when it was opened."""
        self._watchers: list[Callable[[str], None]] = []

    @classmethod
    async def open(
        cls, where: str, home: Home, *, patience: float = PATIENCE, tenure: Tenure | None = None
    ) -> Self:
        """`where`: `sqlite`, or a URL. `tenure`: who uses it, and whether to stand by while another
        does."""
        tenure = tenure or Tenure(secrets.token_hex(16), os.uname().nodename)
        store = cls(tenure)
        possession = Possession(read_address(where, home), tenure)

        def prepare(connection: Connection) -> None:
            if store._prepared:
                if possession.address.database is Database.POSTGRESQL:
                    tenure.check(connection)
                return
            store._begin(connection, possession.address)
            store._prepared = True

        worker = Worker(possession, prepare, store._backlog, store._tell_trouble, patience, tenure)
        store._worker = worker
        await worker.start()
        # Reserves the first numbers. On a full disk there are none, and entries are not kept.
        await store._write_backlog()
        return store

    def _begin(self, connection: Connection, address: Address) -> None:
        """Ours for the first time."""
        begin_tenure(connection, address, self.tenure)
        with transaction(connection, address.database, writes=False):
            self._backlog.begin(connection)
            self._next_command = commands.next_number(connection)
            self.begun = self.written = self._next_command - 1
            self._next_request = requests.next_number(connection)

    def abandon(self, error: SupersededError) -> None:
        """Another manager has been heard of: from now on nothing is asked of the database."""
        self._worker.abandon(error)

    async def superseded(self) -> SupersededError:
        """Waits until the store is another manager's, or may be: it cannot be used any more."""
        while True:
            left = self.tenure.left if self.tenure.standing_by else LOOK_ROUND
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, min(left, LOOK_ROUND))):
                    return await self._worker.lost()
            if not self.tenure.holds():
                error = cut_off(self.tenure)
                self._worker.abandon(error)
                return error

    async def close(self) -> None:
        await self._worker.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # ── how the store itself is ──────────────────────────────────────────────────────────────────

    @property
    def trouble(self) -> str:
        """What is wrong with it, in a sentence; empty: nothing."""
        return self._worker.trouble

    @property
    def dropped(self) -> int:
        """Events and log entries that could not be kept since it was opened."""
        return self._backlog.dropped

    def watch_trouble(self, callback: Callable[[str], None]) -> None:
        """Call this whenever `trouble` changes."""
        self._watchers.append(callback)

    def _tell_trouble(self, trouble: str) -> None:
        for watcher in self._watchers:
            watcher(trouble)

    # ── what is kept elsewhere, and the end of all things ─────────────────────────────────────────

    async def read(self, work: Work[T]) -> T:
        """What others keep in tables of their own."""
        return await self._worker.read(work)

    async def write(self, work: Work[T]) -> T:
        """The same for writing: it is on the disk when this returns. It may be done again, if it is
        not known whether it was done: it must not matter."""
        return await self._worker.write(work)

    async def prune(self, before: float) -> None:
        """Forget events, log entries, commands and requests that were over before a time."""
        for remove in retention.PIECES:
            while await self._worker.write(partial(remove, before)):
                pass
