"""What both databases can do and SQLAlchemy spells for each: writing the same thing again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite

INSERT: dict[str, Callable[[Table], sqlite.Insert | postgresql.Insert]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}

Row = Mapping[str, Any]


def add_missing(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Rows that are there already stay as they are: a retry adds nothing twice."""
    if rows:
        statement = INSERT[connection.dialect.name](table).on_conflict_do_nothing()
        connection.execute(statement, list(rows))


def put(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Rows that are there already are replaced."""
    if rows:
        statement = INSERT[connection.dialect.name](table)
        keys = [column.name for column in table.primary_key]
        changes = {
            column.name: statement.excluded[column.name]
            for column in table.columns
            if column.name not in keys
        }
        statement = statement.on_conflict_do_update(index_elements=keys, set_=changes)
        connection.execute(statement, list(rows))
