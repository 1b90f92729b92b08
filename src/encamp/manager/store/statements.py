"""What both databases can do and SQLAlchemy spells for each: writing the same thing again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite

Insert = sqlite.Insert | postgresql.Insert

INSERT: dict[str, Callable[[Table], Insert]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}

Row = Mapping[str, Any]


def add_missing(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Rows that are there already stay as they are: a retry adds nothing twice."""
    if rows:
        connection.execute(_adding(connection.dialect.name, table), list(rows))


def put(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Rows that are there already are replaced."""
    if rows:
        connection.execute(_putting(connection.dialect.name, table), list(rows))


# Each is made once: making one leaves much behind that only the collector of garbage clears away.


@cache
def _adding(database: str, table: Table) -> Insert:
    return INSERT[database](table).on_conflict_do_nothing()


@cache
def _putting(database: str, table: Table) -> Insert:
    statement = INSERT[database](table)
    keys = [column.name for column in table.primary_key]
    changes = {
        column.name: statement.excluded[column.name]
        for column in table.columns
        if column.name not in keys
    }
    return statement.on_conflict_do_update(index_elements=keys, set_=changes)
