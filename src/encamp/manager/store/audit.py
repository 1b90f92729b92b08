"""The audit log in a table. An entry is written before the thing is done, and again after it."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, func, select

from encamp.manager.store.documents import decoded, key, lenient_document
from encamp.manager.store.statements import put
from encamp.manager.store.tables import audit
from encamp.model.audit import AuditEntry

ENTRIES = msgspec.json.Decoder(AuditEntry)
MOST = 10_000
"""Entries that are read at once."""


def newest(connection: Connection) -> int:
    return int(connection.scalar(select(func.max(audit.c.number))) or 0)


def write(connection: Connection, entries: list[AuditEntry]) -> None:
    """Those that are there already are replaced."""
    put(
        connection,
        audit,
        [
            {
                "number": entry.number,
                "at": entry.at,
                "name": key(entry.who),
                "document": lenient_document(entry),
            }
            for entry in entries
        ],
    )


def read(connection: Connection, since: int, last: int | None, who: str) -> list[AuditEntry]:
    """Those after a number, or the latest of them; the oldest first."""
    query = select(audit.c.number, audit.c.document).where(audit.c.number > since)
    if who:
        query = query.where(audit.c.name == key(who))
    most = MOST if last is None else max(0, min(last, MOST))
    order = audit.c.number if last is None else audit.c.number.desc()
    found = connection.execute(query.order_by(order).limit(most)).all()
    entries = [entry for _, entry in decoded(ENTRIES, ((row[0], row[1]) for row in found))]
    return entries if last is None else entries[::-1]
