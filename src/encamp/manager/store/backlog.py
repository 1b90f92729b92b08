"""What may wait while the store cannot be written: events, the triggers' log, how hosts are.

It is bounded, it is written first as soon as there is room again, and reading sees it as if it
were written. A manager that is killed before that has lost it.
"""

from __future__ import annotations

import threading

from sqlalchemy import Connection, delete, select

from encamp.manager.store import tables
from encamp.manager.store.log import Log
from encamp.manager.store.statements import put


class Backlog:
    def __init__(self) -> None:
        self.events = Log(tables.events)
        self.judged = Log(tables.judged)
        self._hosts: dict[str, bytes | None] = {}
        """Documents by key; none: it is to be forgotten."""
        self._lock = threading.Lock()
        self._counts: list[tuple[int, int]] = []
        self._written: dict[str, bytes | None] = {}

    @property
    def _logs(self) -> tuple[Log, Log]:
        return self.events, self.judged

    @property
    def dropped(self) -> int:
        return sum(log.dropped for log in self._logs)

    @property
    def waiting(self) -> bool:
        return any(log.waiting for log in self._logs) or bool(self._hosts)

    def begin(self, connection: Connection) -> None:
        for log in self._logs:
            log.begin(connection)

    def end(self, connection: Connection) -> None:
        for log in self._logs:
            log.end(connection)

    def put_host(self, name: str, document: bytes | None) -> None:
        with self._lock:
            self._hosts[name] = document

    def hosts(self) -> dict[str, bytes | None]:
        with self._lock:
            return dict(self._hosts)

    def read_hosts(self, connection: Connection) -> dict[str, bytes]:
        """The documents of all hosts, as if everything were written."""
        rows = connection.execute(select(tables.hosts.c.name, tables.hosts.c.document))
        documents = {row.name: row.document for row in rows} | self.hosts()
        return {name: data for name, data in documents.items() if data is not None}

    def write(self, connection: Connection) -> None:
        """In a transaction of the store's thread; `written` follows if it was committed."""
        self._counts = [log.write(connection) for log in self._logs]
        self._written = self.hosts()
        known = [
            {"name": name, "document": document}
            for name, document in self._written.items()
            if document is not None
        ]
        put(connection, tables.hosts, known)
        for name, document in self._written.items():
            if document is None:
                connection.execute(delete(tables.hosts).where(tables.hosts.c.name == name))

    def written(self) -> None:
        for log, (entries, reserved) in zip(self._logs, self._counts, strict=True):
            log.written(entries, reserved)
        with self._lock:
            for name, document in self._written.items():
                # It may have changed again meanwhile.
                if self._hosts.get(name) is document:
                    del self._hosts[name]

    def drop(self) -> None:
        for log in self._logs:
            log.drop()
        with self._lock:
            self._hosts.clear()
