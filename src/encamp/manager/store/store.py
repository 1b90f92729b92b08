"""The manager's store: what must survive a crash, written before it is acted upon."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

import msgspec
from sqlalchemy import Connection, delete, select

from encamp.core.actions import Judged
from encamp.home import Home
from encamp.manager.store import commands, requests, retention, tables
from encamp.manager.store.address import Address, Database, read_address
from encamp.manager.store.backlog import Backlog
from encamp.manager.store.beginning import begin_tenure
from encamp.manager.store.connecting import Possession
from encamp.manager.store.documents import (
    LARGEST_DOCUMENT,
    decoded,
    document,
    exact_key,
    key,
    lenient_document,
)
from encamp.manager.store.jobs import Work
from encamp.manager.store.log import MOST_NAMES, Entry, Log
from encamp.manager.store.statements import put
from encamp.manager.store.tenure import SupersededError, Tenure, cut_off
from encamp.manager.store.transactions import transaction
from encamp.manager.store.worker import Worker
from encamp.model.command import CommandRecord
from encamp.model.errors import Code, EncampError
from encamp.model.event import Event
from encamp.model.host import Host
from encamp.model.request import RequestRecord

PATIENCE = 30.0
"""Seconds that callers wait for a database that does not answer."""
PAGE = 1000
"""Entries that are read at once; others get a turn in between."""
MOST = 1_000_000
"""Entries that one question is answered with at most."""
LOOKED_THROUGH = 20_000
"""Commands among which one issuer's are looked for."""
LARGEST_NUMBER = 2**63 - 1
OWN = "store."
"""Keys that begin so are the store's own."""
LOOK_ROUND = 0.5
"""Seconds between two looks at whether the tenure still holds."""

T = TypeVar("T")

EVENTS = msgspec.json.Decoder(Event)
JUDGED = msgspec.json.Decoder(Judged)
HOSTS = msgspec.json.Decoder(Host)


class Store:
    """One for each site, and one manager for each store."""

    def __init__(self, tenure: Tenure) -> None:
        """Use `open`."""
        self.tenure = tenure
        self._backlog = Backlog()
        self._prepared = False
        self._next_command = 1
        self._next_request = 1
        self._watchers: list[Callable[[str], None]] = []
        self._worker: Worker

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

    # ── commands ─────────────────────────────────────────────────────────────────────────────────

    async def add_commands(self, records: Sequence[CommandRecord]) -> None:
        """All of them are on the disk when it returns, or none."""
        rows = commands.rows(records, self._next_command)
        self._next_command += len(rows)
        await self._worker.write(lambda connection: commands.add(connection, rows))

    async def move_command(self, record: CommandRecord) -> CommandRecord:
        """The record that is in effect then: a move that may not be leaves it as it was."""
        return await self._worker.write(lambda connection: commands.move(connection, record))

    async def add_output(self, id: str, offset: int, piece: bytes) -> int:
        """How many bytes of the command's output have arrived. A gap is refused."""
        return await self._worker.write(
            lambda connection: commands.add_output(connection, id, offset, piece)
        )

    async def output(self, id: str, offset: int, most: int) -> bytes:
        return await self._worker.read(
            lambda connection: commands.output(connection, id, offset, most)
        )

    async def command(self, prefix: str) -> CommandRecord:
        """The one command whose id begins so."""
        return await self._worker.read(lambda connection: commands.beginning(connection, prefix))

    async def commands(
        self, hosts: Collection[str] = (), last: int = 100, issuer: str = ""
    ) -> list[CommandRecord]:
        """The latest first; one issuer's are looked for among the latest of all."""
        wanted = frozenset(hosts)
        last = max(0, min(last, MOST))
        found: list[CommandRecord] = []
        before: int | None = None
        size = PAGE if issuer else _page(wanted, last)
        looked = 0
        while len(found) < last and not (issuer and looked >= LOOKED_THROUGH):
            page, before = await self._worker.read(
                partial(commands.latest, hosts=wanted, before=before, most=size)
            )
            found += [record for record in page if issuer in ("", record.issuer)]
            looked += size
            if before is None:
                break
        return found[:last]

    async def under_way(self) -> list[CommandRecord]:
        """Those that wait or run, the oldest first."""
        found: list[CommandRecord] = []
        after: int | None = 0
        while after is not None:
            page, after = await self._worker.read(partial(commands.under_way, after=after))
            found += page
        return found

    async def known_commands(self, ids: Sequence[str]) -> list[CommandRecord]:
        """Those of them that were ever issued and are remembered."""
        found: list[CommandRecord] = []
        for start in range(0, len(ids), commands.PAGE):
            some = ids[start : start + commands.PAGE]
            found += await self._worker.read(partial(commands.these, ids=some))
        return found

    # ── requests ─────────────────────────────────────────────────────────────────────────────────

    async def add_request(self, record: RequestRecord) -> None:
        """It is on the disk when this returns."""
        rows = requests.rows([record], self._next_request)
        self._next_request += 1
        await self._worker.write(lambda connection: requests.add(connection, rows))

    async def write_requests(self, records: Sequence[RequestRecord]) -> None:
        """How far some have come: all of them are on the disk when it returns, or none."""
        changes = requests.changes(records)
        await self._worker.write(lambda connection: requests.write(connection, changes))

    async def request(self, name: str, owner: str = "") -> RequestRecord:
        """The one whose id begins so, or that is labelled so; of one owner, if one is given."""
        return await self._worker.read(partial(requests.beginning, name=name, owner=owner))

    async def requests(self, owner: str = "", last: int = 100) -> list[RequestRecord]:
        """The latest first."""
        last = max(0, min(last, MOST))
        found: list[RequestRecord] = []
        before: int | None = None
        while len(found) < last:
            look = partial(requests.latest, owner=owner, before=before, most=min(PAGE, last))
            page, before = await self._worker.read(look)
            found += page
            if before is None:
                break
        return found[:last]

    async def requests_under_way(self) -> AsyncIterator[RequestRecord]:
        """Those that are not over, the oldest first."""
        async for record in self._requests(requests.under_way):
            yield record

    async def lost_requests(self) -> AsyncIterator[RequestRecord]:
        """Those that were given up for lost, the oldest first."""
        async for record in self._requests(requests.lost):
            yield record

    async def _requests(
        self, look: Callable[[Connection, int], tuple[list[RequestRecord], int | None]]
    ) -> AsyncIterator[RequestRecord]:
        """Page by page, so that others get a turn in between."""
        after: int | None = 0
        while after is not None:
            page, after = await self._worker.read(partial(_at, look, after))
            for record in page:
                yield record

    # ── events, and the triggers' log ────────────────────────────────────────────────────────────

    async def add_events(self, events: Sequence[Event]) -> list[Event]:
        """With their numbers. While the store is in trouble they wait in memory; those for which
        there is no room there get the number 0."""
        log = self._backlog.events
        numbers = [
            await self._add(log, event.at, event.host, lenient_document(event)) for event in events
        ]
        await self._write_backlog(log)
        return [
            msgspec.structs.replace(event, number=number)
            for event, number in zip(events, numbers, strict=True)
        ]

    async def events(
        self, since: int = 0, last: int | None = None, hosts: Collection[str] = ()
    ) -> list[Event]:
        """Those after number `since`, or the latest of them; the oldest first."""
        found = await self._entries(self._backlog.events, hosts, since, last)
        return [
            msgspec.structs.replace(event, number=number)
            for number, event in decoded(EVENTS, _documents(found))
        ]

    async def add_judged(self, entries: Sequence[Judged]) -> None:
        """Like events, they wait in memory while the store is in trouble."""
        log = self._backlog.judged
        for entry in entries:
            await self._add(log, entry.at, entry.trigger, lenient_document(entry))
        await self._write_backlog(log)

    async def judged(self, name: str = "", last: int = 100) -> list[Judged]:
        """The latest entries of one trigger's log, or of all; the oldest first."""
        found = await self._entries(self._backlog.judged, (name,) if name else (), 0, last)
        return [entry for _, entry in decoded(JUDGED, _documents(found))]

    async def _add(self, log: Log, at: float, name: str, data: bytes) -> int:
        if not log.has_room(len(data)) and not self.trouble:
            await self._write_backlog(log)
        return log.add(at if math.isfinite(at) else 0.0, key(name), data)

    async def _write_backlog(self, log: Log | None = None) -> None:
        """Until all that the log holds now is written, or has to wait."""
        upto = log.newest if log is not None else 0
        while not self.trouble:
            try:
                await self._worker.write_backlog()
            except EncampError:
                if self._worker.ending:
                    raise
                return
            if log is None or log.written_upto >= upto:
                return

    async def _entries(
        self, log: Log, names: Collection[str], since: int, last: int | None
    ) -> list[Entry]:
        """Page by page, so that others get a turn in between."""
        keys = frozenset(key(name) for name in names)
        since = max(0, min(since, LARGEST_NUMBER))
        if last is None:
            look = partial(log.newer, names=keys)
        else:
            look = partial(log.older, names=keys, since=since)
        most = MOST if last is None else max(0, min(last, MOST))
        found: list[Entry] = []
        place: int | None = since if last is None else None
        size = _page(keys, most)
        while len(found) < most:
            page = await self._worker.read(partial(look, place=place, most=size))
            found += [entry for entry in page if not keys or entry.name in keys]
            if len(page) < size:
                break
            place = page[-1].number
        found = found[:most]
        return found if last is None else found[::-1]

    # ── hosts ────────────────────────────────────────────────────────────────────────────────────

    async def save_host(self, host: Host) -> None:
        """As it is known to be, without its readings, which its agent tells anew. It waits in
        memory while the store is in trouble."""
        data = document(msgspec.structs.replace(host, readings={}), f"Host {key(host.name)}")
        self._backlog.put_host(key(host.name), data)
        await self._write_backlog()

    async def forget_host(self, name: str) -> None:
        self._backlog.put_host(key(name), None)
        await self._write_backlog()

    async def hosts(self) -> list[Host]:
        """Sorted by name."""
        documents = await self._worker.read(self._backlog.read_hosts)
        return [host for _, host in decoded(HOSTS, sorted(documents.items()))]

    # ── small things, and the end of all things ──────────────────────────────────────────────────

    async def keep(self, key: str, value: bytes) -> None:
        """Remember something small: the triggers' memory, the site's id."""
        name = exact_key(key, "The key")
        if name.startswith(OWN):
            raise EncampError(Code.USAGE, f"Keys that begin with '{OWN}' are the store's own.")
        if len(value) > LARGEST_DOCUMENT:
            raise EncampError(Code.USAGE, f"'{name}' is too large to be kept: {len(value)} bytes.")
        row = {"key": name, "value": bytes(value)}
        await self._worker.write(lambda connection: put(connection, tables.kept, [row]))

    async def kept(self, key: str) -> bytes | None:
        name = exact_key(key, "The key")
        query = select(tables.kept.c.value).where(tables.kept.c.key == name)
        value = await self._worker.read(lambda connection: connection.scalar(query))
        return None if value is None else bytes(value)

    async def kept_under(self, prefix: str) -> dict[str, bytes]:
        """What is kept under keys that begin so."""
        column = tables.kept.c.key
        query = select(column, tables.kept.c.value).where(
            column.startswith(prefix, autoescape=True)
        )
        rows = await self._worker.read(lambda connection: connection.execute(query).all())
        return {str(row[0]): bytes(row[1]) for row in rows}

    async def drop(self, key: str) -> None:
        """Do not remember it any more."""
        statement = delete(tables.kept).where(tables.kept.c.key == exact_key(key, "The key"))
        await self._worker.write(lambda connection: connection.execute(statement).rowcount)

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


def _at(look: Callable[[Connection, int], T], place: int, connection: Connection) -> T:
    return look(connection, place)


def _documents(entries: Sequence[Entry]) -> list[tuple[int, bytes]]:
    return [(entry.number, entry.document) for entry in entries]


def _page(names: Collection[str], most: int) -> int:
    """Entries to read at once: no more than are wanted, if the database chooses them."""
    return PAGE if len(names) > MOST_NAMES else min(PAGE, most)
