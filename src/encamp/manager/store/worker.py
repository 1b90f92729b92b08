"""The thread that speaks with the database.

What several callers want at once is one transaction, so that a hundred of them wait for the disk
once. Everything it is asked to write can be asked again without doubling anything; so what a
broken connection left in doubt is simply tried again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from encamp.manager.store.address import Database
from encamp.manager.store.backlog import Backlog
from encamp.manager.store.connecting import Possession, forget
from encamp.manager.store.jobs import Job, T, Work, deliver, fail, fulfil
from encamp.manager.store.statements import put
from encamp.manager.store.tables import kept
from encamp.manager.store.tenure import SupersededError, Tenure
from encamp.manager.store.transactions import transaction
from encamp.manager.store.troubles import WAITABLE, WRONG, Complaint, complaint, explained
from encamp.model.errors import Code, EncampError
from encamp.model.leader import Leadership

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two tries while the store is in trouble: each twice the former."""
FAREWELL = 2.0
"""Seconds that whoever stood by has to leave the line."""
DEFERENCE = 2.0
"""Seconds after which those who stand by try a database that was away: whoever led when it went is
back before."""
PROBE = {"key": "store.probe", "value": os.urandom(64 << 10)}
"""Written to see whether there is room again. It is large, and nothing that can be compressed, so
that the last free corner of a disk is not taken for room."""

log = logging.getLogger(__name__)


class Worker:
    def __init__(
        self,
        possession: Possession,
        prepare: Work[None],
        backlog: Backlog,
        tell: Callable[[str], None],
        patience: float,
        tenure: Tenure,
    ) -> None:
        self.trouble = ""
        self._possession = possession
        self._address = possession.address
        self._prepare = prepare
        self._backlog = backlog
        self._tell = tell
        self._patience = patience
        self._tenure = tenure
        self._renews = self._address.database is Database.POSTGRESQL
        """Is there anybody who could take the store from us?"""
        self._loop = asyncio.get_running_loop()
        self._begun: asyncio.Future[None] = self._loop.create_future()
        self._lost: asyncio.Future[SupersededError] = self._loop.create_future()
        self._asked: set[asyncio.Future[Any]] = set()
        self._changed = threading.Condition()
        self._inbox: list[Job] = []
        self._waiting: list[Job] = []
        self.ending = False
        self._silent = False
        self._told = ""
        self._thread = threading.Thread(target=self._live, name="store", daemon=True)

    # ── in the event loop's thread ───────────────────────────────────────────────────────────────

    async def start(self) -> None:
        self._thread.start()
        try:
            await self._begun
        except asyncio.CancelledError:
            self._end_soon()
            # It says that it does not stand by any more.
            await asyncio.to_thread(self._thread.join, FAREWELL)
            raise

    async def stop(self) -> None:
        self._end_soon()
        if not self._lost.done():
            await asyncio.to_thread(self._thread.join)

    async def lost(self) -> SupersededError:
        """Waits until the store is another manager's."""
        return await asyncio.shield(self._lost)

    def abandon(self, error: SupersededError) -> None:
        """It is, or may be: nothing is waited for any more, not even for the thread, which may hang
        in a connection that is cut. Whatever it was doing there, it can do to our own only."""
        if self._lost.done():
            return
        self._lost.set_result(error)
        self._tenure.end()
        self._end_soon()
        for future in list(self._asked):
            fail(future, error)

    def _end_soon(self) -> None:
        with self._changed:
            self.ending = True
            self._changed.notify()

    async def read(self, work: Work[T]) -> T:
        return await self._ask(work, writes=False, patience=self._patience)

    async def write(self, work: Work[T]) -> T:
        """It is on the disk when this returns."""
        return await self._ask(work, writes=True, patience=self._patience)

    async def write_backlog(self) -> None:
        """Or find out that it has to wait."""
        await self._ask(lambda connection: None, writes=True, patience=0.0)

    async def _ask(self, work: Work[T], *, writes: bool, patience: float) -> T:
        future: asyncio.Future[T] = self._loop.create_future()
        deadline = time.monotonic() + patience if patience else 0.0
        job = Job(work, future, writes=writes, deadline=deadline)
        with self._changed:
            if self._lost.done():
                raise self._lost.result()
            if self.ending:
                raise EncampError(Code.WRONG_STATE, "The manager's store has been closed.")
            self._inbox.append(job)
            self._changed.notify()
        self._asked.add(future)
        try:
            return await future
        finally:
            self._asked.discard(future)

    # ── in the store's thread ────────────────────────────────────────────────────────────────────

    def _live(self) -> None:
        try:
            connection = self._connect_first()
        except Exception as error:
            self._possession.close()
            self._call(fail, self._begun, explained(self._address, error))
            return
        self._call(fulfil, self._begun)
        current: Connection | None = connection
        pause = FIRST_PAUSE
        ending = False
        while not ending:
            ending = self._wait(pause)
            if self._lost.done():
                break
            current = self._round(current)
            pause = min(pause * 2, LONGEST_PAUSE) if self.trouble else FIRST_PAUSE
        self._end(current)

    def _connect_first(self) -> Connection:
        """Whoever stands by also waits for a database that is away."""
        while True:
            try:
                return self._connect()
            except Exception as error:
                if not self._is_waited_for(error) or self.ending:
                    raise
                fault = explained(self._address, error)
                said = f"{fault.sentence} {_first_line(fault.detail)}".rstrip()
                self._tenure.tell(Leadership(trouble=said))
                self._rest(DEFERENCE)

    def _is_waited_for(self, error: Exception) -> bool:
        if self._tenure.told is None or not self._renews:
            return False
        meaning = complaint(self._address, error)
        stood_by = self._tenure.since > 0
        return meaning in WAITABLE or (stood_by and meaning in WRONG)

    def _rest(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.ending, seconds)

    def _connect(self) -> Connection:
        connection = self._possession.connect(lambda: self.ending)
        try:
            self._prepare(connection)
        except BaseException:
            forget(connection)
            raise
        return connection

    def _wait(self, pause: float) -> bool:
        """Until there is something to do. True: it is the last time."""
        with self._changed:
            if self._silent:
                # Whoever comes meanwhile has to wait, too.
                self._changed.wait_for(lambda: self.ending, pause)
            else:
                self._changed.wait_for(self._has_work, self._longest_wait(pause))
            self._waiting += self._inbox
            self._inbox.clear()
            return self.ending

    def _longest_wait(self, pause: float) -> float | None:
        waits = [pause] if self.trouble else []
        waits += [max(0.0, self._tenure.due)] if self._renews else []
        return min(waits, default=None)

    def _has_work(self) -> bool:
        more = self._backlog.waiting and not self.trouble
        return bool(self._inbox) or self.ending or more

    def _round(self, connection: Connection | None) -> Connection | None:
        """Do what is to be done; what remains waits for a better time."""
        jobs = [job for job in self._waiting if not job.future.cancelled()]
        trouble: EncampError | None = None
        try:
            if connection is None:
                connection = self._connect()
            if self._renews and self._tenure.due <= 0:
                self._renew(connection)
            trouble = self._write(connection, [job for job in jobs if job.writes])
            self._read(connection, [job for job in jobs if not job.writes])
            self._silent = False
        except Exception as error:
            fault = trouble = explained(self._address, error)
            if isinstance(error, SupersededError):
                self._call(self.abandon, error)
            self._silent = True
            connection = self._let_go(connection)
            now = time.monotonic()
            for job in jobs:
                if not job.done and (job.deadline <= now or self.ending):
                    job.fail(fault)
        self._waiting = [job for job in jobs if not job.done]
        self._change_trouble(trouble)
        self._call(deliver, [job for job in jobs if job.done])
        return connection

    def _renew(self, connection: Connection) -> None:
        try:
            self._tenure.renew(connection, self._address.database)
        except DBAPIError as error:
            # What it is full of, or may not be written, concerns whoever writes.
            if complaint(self._address, error) is Complaint.GONE:
                raise
            log.warning(
                "This manager's tenure was not renewed: %s", explained(self._address, error)
            )

    @staticmethod
    def _let_go(connection: Connection | None) -> None:
        """Of a connection nobody knows the state of; the next round gets a new one."""
        if connection is not None:
            forget(connection)

    def _write(self, connection: Connection, jobs: list[Job]) -> EncampError | None:
        """What is wrong with writing, if anything is."""
        if not (jobs or self._backlog.waiting or self.trouble):
            return None
        try:
            self._commit(connection, jobs, with_backlog=True)
            return None
        except Exception as error:
            if complaint(self._address, error) is Complaint.GONE:
                raise
        # One of them may be the reason why none was written.
        trouble: EncampError | None = None
        for group in [[], *([job] for job in jobs)]:
            try:
                self._commit(connection, group, with_backlog=not group)
            except Exception as error:
                meaning = complaint(self._address, error)
                if meaning is Complaint.GONE:
                    raise
                fault = explained(self._address, error)
                if meaning is not Complaint.MISTAKE:
                    trouble = fault
                elif not group:
                    log.error("The database refuses what was to be written: %s", fault.detail)
                    self._backlog.drop()
                for job in group:
                    job.fail(fault)
        return trouble

    def _commit(self, connection: Connection, jobs: list[Job], *, with_backlog: bool) -> None:
        with transaction(connection, self._address.database, writes=True):
            if self.trouble and not jobs:
                put(connection, kept, [PROBE])
            if with_backlog:
                self._backlog.write(connection)
            for job in jobs:
                job.run(connection)
        if with_backlog:
            self._backlog.written()
        for job in jobs:
            job.done = True

    def _read(self, connection: Connection, jobs: list[Job]) -> None:
        for job in jobs:
            try:
                with transaction(connection, self._address.database, writes=False):
                    job.run(connection)
                job.done = True
            except Exception as error:
                if complaint(self._address, error) is Complaint.GONE:
                    raise
                job.fail(explained(self._address, error))

    def _end(self, connection: Connection | None) -> None:
        if connection is not None and not self._lost.done():
            try:
                while self._backlog.waiting and not self.trouble:
                    self._commit(connection, [], with_backlog=True)
                with transaction(connection, self._address.database, writes=True):
                    self._backlog.end(connection)
                    self._tenure.give_up(connection)
            except Exception as error:
                fault = explained(self._address, error)
                log.warning("The store was not closed in order: %s %s", fault, fault.detail)
        if connection is not None:
            forget(connection)
        self._possession.close()

    def _change_trouble(self, fault: EncampError | None) -> None:
        """Told once while it lasts, however its details change."""
        sentence = fault.sentence if fault is not None else ""
        if sentence == self._told:
            return
        self._told = sentence
        self.trouble = sentence
        if fault is not None and fault.detail:
            self.trouble += f" It says: {_first_line(fault.detail)}"
        if fault is None and self._backlog.dropped:
            log.warning(
                "%d events and log entries could not be kept since the manager started.",
                self._backlog.dropped,
            )
        self._call(self._tell, self.trouble)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        """In the event loop, if it is still there."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)


def _first_line(detail: str) -> str:
    return detail.splitlines()[0] if detail else ""
