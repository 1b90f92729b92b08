"""A log: numbered entries that are only ever added to, such as the events.

Numbers are given before entries are written, so that writing can be tried again without doubling
anything, and are never given twice: those that may be given out while nothing can be written are
reserved beforehand. A manager that was killed goes on after the last reserved number.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection
from itertools import islice
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, Table, func, select

from encamp.manager.store.statements import add_missing, put
from encamp.manager.store.tables import kept

RESERVED = 10_000
"""Entries that can wait while the store cannot be written."""
LARGEST_BACKLOG = 64 << 20
"""Bytes of them."""
AT_ONCE = 1000
"""Entries that are written in one transaction."""
MOST_NAMES = 100
"""Names that the database looks for by its index; for more than that all entries are read."""


class Entry(msgspec.Struct, frozen=True):
    number: int
    at: float
    name: str
    document: bytes


class Log:
    """Entries are added by the event loop's thread and written by the store's."""

    def __init__(self, table: Table) -> None:
        self.dropped = 0
        """Entries that could not be kept."""
        self._table = table
        self._mark = f"store.{table.name}"
        self._pending: deque[Entry] = deque()
        self._bytes = 0
        self._next = 1
        self._reserved = 0
        self._lock = threading.Lock()

    def begin(self, connection: Connection) -> None:
        """Find out which numbers were given."""
        marked = connection.scalar(select(kept.c.value).where(kept.c.key == self._mark))
        newest = connection.scalar(select(func.max(self._table.c.number)))
        self._next = max(int(marked or b"0"), newest or 0) + 1
        self._reserved = self._next - 1

    def reserve(self, connection: Connection) -> int:
        """The last number that is reserved, if this transaction is committed."""
        if self._next + RESERVED // 2 <= self._reserved:
            return self._reserved
        reserved = self._next + RESERVED
        self._keep_mark(connection, reserved)
        return reserved

    def end(self, connection: Connection) -> None:
        """Give back what was reserved: the next manager goes on without a gap."""
        self._keep_mark(connection, self._next - 1)

    def _keep_mark(self, connection: Connection, number: int) -> None:
        put(connection, kept, [{"key": self._mark, "value": b"%d" % number}])

    @property
    def waiting(self) -> int:
        return len(self._pending)

    @property
    def newest(self) -> int:
        """The last number that was given."""
        return self._next - 1

    @property
    def written_upto(self) -> int:
        """Entries up to this number do not wait any more."""
        with self._lock:
            return self._pending[0].number - 1 if self._pending else self.newest

    def has_room(self, size: int) -> bool:
        return self._next <= self._reserved and self._bytes + size <= LARGEST_BACKLOG

    def add(self, at: float, name: str, document: bytes) -> int:
        """Its number, which is the next one; 0 if it could not be kept."""
        with self._lock:
            if not self.has_room(len(document)):
                self.dropped += 1
                return 0
            number = self._next
            self._next += 1
            self._pending.append(Entry(number, at, name, document))
            self._bytes += len(document)
            return number

    def write(self, connection: Connection) -> tuple[int, int]:
        """How many were written, and up to which number is reserved, once it is committed."""
        with self._lock:
            entries = list(islice(self._pending, AT_ONCE))
        add_missing(connection, self._table, [msgspec.structs.asdict(entry) for entry in entries])
        return len(entries), self.reserve(connection)

    def written(self, entries: int, reserved: int) -> None:
        with self._lock:
            for _ in range(entries):
                self._bytes -= len(self._pending.popleft().document)
            self._reserved = reserved

    def drop(self) -> None:
        """Give up what the database does not take, so that it does not hold up the rest."""
        with self._lock:
            self.dropped += len(self._pending)
            self._pending.clear()
            self._bytes = 0

    def older(
        self,
        connection: Connection,
        names: Collection[str],
        since: int,
        place: int | None,
        most: int,
    ) -> list[Entry]:
        """The newest entries after `since` and before `place`, newest first."""
        with self._lock:
            waiting = [
                entry
                for entry in reversed(self._pending)
                if entry.number > since and (place is None or entry.number < place)
            ][:most]
        query = self._query(names).where(self._table.c.number > since)
        if place is not None:
            query = query.where(self._table.c.number < place)
        query = query.order_by(self._table.c.number.desc()).limit(most - len(waiting))
        return waiting + [Entry(*row) for row in connection.execute(query)]

    def newer(
        self, connection: Connection, names: Collection[str], place: int, most: int
    ) -> list[Entry]:
        """The oldest entries after `place`, oldest first."""
        query = self._query(names).where(self._table.c.number > place)
        query = query.order_by(self._table.c.number).limit(most)
        found = [Entry(*row) for row in connection.execute(query)]
        with self._lock:
            waiting = [entry for entry in self._pending if entry.number > place]
        return found + waiting[: most - len(found)]

    def _query(self, names: Collection[str]) -> Select[Any]:
        columns = self._table.c
        query = select(columns.number, columns.at, columns.name, columns.document)
        if 0 < len(names) <= MOST_NAMES:
            query = query.where(columns.name.in_(names))
        return query
