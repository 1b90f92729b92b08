"""Transactions, begun and ended in plain sight: connections commit by themselves otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from encamp.manager.store.address import Database

BEGIN = {
    # At once, so that a lock somebody else holds is met here and not half-way.
    (Database.SQLITE, True): "BEGIN IMMEDIATE",
    (Database.SQLITE, False): "BEGIN",
    (Database.POSTGRESQL, True): "BEGIN",
    (Database.POSTGRESQL, False): "BEGIN READ ONLY",
}


@contextmanager
def transaction(connection: Connection, database: Database, *, writes: bool) -> Iterator[None]:
    connection.exec_driver_sql(BEGIN[database, writes])
    try:
        yield
        connection.exec_driver_sql("COMMIT")
    except BaseException:
        # SQLite has rolled back by itself when its disk is full; a broken connection, too.
        with suppress(SQLAlchemyError):
            connection.exec_driver_sql("ROLLBACK")
        raise
