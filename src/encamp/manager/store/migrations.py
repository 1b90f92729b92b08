"""From each schema to the next. A step that was once released is never changed again.

All steps that are missing are taken in one transaction, under a lock: a manager that is killed in
the middle leaves the former schema, and of two that start at once one does it.
"""

from __future__ import annotations

import time

import msgspec
from sqlalchemy import Connection, func, inspect, select, text

from encamp import __version__
from encamp.manager.store.address import Address, Database
from encamp.manager.store.tables import schema_versions
from encamp.manager.store.transactions import transaction
from encamp.model.errors import Code, EncampError

APPLICATION = 0x456E6361
"""Marks a file of SQLite's as Encamp's: `Enca`."""
SCHEMA = "encamp"
"""The tables' own corner of a database of PostgreSQL's, which may hold other things too."""
LOCK = 0x456E63616D7001
"""The number of the lock that whoever changes the schema holds, in PostgreSQL."""

TYPES = {
    Database.SQLITE: {
        "number": "INTEGER",
        "real": "DOUBLE PRECISION",
        "bytes": "BLOB",
        "key": "TEXT",
    },
    Database.POSTGRESQL: {
        "number": "BIGINT",
        "real": "DOUBLE PRECISION",
        "bytes": "BYTEA",
        # Compared byte by byte, as SQLite does, whatever the database's language.
        "key": 'TEXT COLLATE "C"',
    },
}


class Migration(msgspec.Struct, frozen=True):
    version: int
    brings: str
    statements: tuple[str, ...]


MIGRATIONS = (
    Migration(
        1,
        "commands and their output, events, hosts, and what else is kept",
        (
            """CREATE TABLE commands (
                id {key} NOT NULL PRIMARY KEY,
                number {number} NOT NULL,
                host {key} NOT NULL,
                state TEXT NOT NULL,
                over_since {real},
                output {number} NOT NULL,
                document {bytes} NOT NULL)""",
            "CREATE INDEX commands_by_number ON commands (number)",
            "CREATE INDEX commands_by_host ON commands (host, number)",
            "CREATE INDEX commands_under_way ON commands (number) WHERE over_since IS NULL",
            "CREATE INDEX commands_over ON commands (over_since) WHERE over_since IS NOT NULL",
            """CREATE TABLE outputs (
                command {key} NOT NULL,
                start {number} NOT NULL,
                piece {bytes} NOT NULL,
                PRIMARY KEY (command, start))""",
            """CREATE TABLE events (
                number {number} NOT NULL PRIMARY KEY,
                at {real} NOT NULL,
                name {key} NOT NULL,
                document {bytes} NOT NULL)""",
            "CREATE INDEX events_by_name ON events (name, number)",
            "CREATE INDEX events_by_time ON events (at)",
            """CREATE TABLE hosts (
                name {key} NOT NULL PRIMARY KEY,
                document {bytes} NOT NULL)""",
            """CREATE TABLE kept (
                key {key} NOT NULL PRIMARY KEY,
                value {bytes} NOT NULL)""",
        ),
    ),
    Migration(
        2,
        "the triggers' log",
        (
            """CREATE TABLE judged (
                number {number} NOT NULL PRIMARY KEY,
                at {real} NOT NULL,
                name {key} NOT NULL,
                document {bytes} NOT NULL)""",
            "CREATE INDEX judged_by_name ON judged (name, number)",
            "CREATE INDEX judged_by_time ON judged (at)",
        ),
    ),
    Migration(
        3,
        "requests",
        (
            """CREATE TABLE requests (
                id {key} NOT NULL PRIMARY KEY,
                number {number} NOT NULL,
                owner {key} NOT NULL,
                label {key} NOT NULL,
                state TEXT NOT NULL,
                over_since {real},
                document {bytes} NOT NULL)""",
            "CREATE INDEX requests_by_number ON requests (number)",
            "CREATE INDEX requests_by_owner ON requests (owner, number)",
            "CREATE INDEX requests_by_label ON requests (label, number) WHERE label <> ''",
            "CREATE INDEX requests_under_way ON requests (number) WHERE over_since IS NULL",
            "CREATE INDEX requests_over ON requests (over_since) WHERE over_since IS NOT NULL",
        ),
    ),
    Migration(
        4,
        "tokens, and the audit log",
        (
            """CREATE TABLE tokens (
                id {key} NOT NULL PRIMARY KEY,
                digest {bytes} NOT NULL,
                document {bytes} NOT NULL)""",
            """CREATE TABLE audit (
                number {number} NOT NULL PRIMARY KEY,
                at {real} NOT NULL,
                name {key} NOT NULL,
                document {bytes} NOT NULL)""",
            "CREATE INDEX audit_by_name ON audit (name, number)",
            "CREATE INDEX audit_by_time ON audit (at)",
        ),
    ),
    Migration(
        5,
        "who leads, and who stands by",
        (
            """CREATE TABLE leadership (
                place {number} NOT NULL PRIMARY KEY,
                store {number} NOT NULL,
                epoch {number} NOT NULL,
                instance {key} NOT NULL,
                host TEXT NOT NULL,
                since {real} NOT NULL,
                until {real} NOT NULL)""",
            """CREATE TABLE managers (
                instance {key} NOT NULL PRIMARY KEY,
                host TEXT NOT NULL,
                since {real} NOT NULL,
                seen {real} NOT NULL,
                trouble TEXT NOT NULL)""",
        ),
    ),
)
NEWEST = MIGRATIONS[-1].version
LEADERSHIP = 5
"""Since when the store says who leads."""


def migrate(connection: Connection, address: Address, upto: int = NEWEST) -> None:
    """Bring the schema up to date. Nothing is written if it is."""
    with transaction(connection, address.database, writes=True):
        if address.database is Database.POSTGRESQL:
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        present = check_known(connection, address)
        if present == 0:
            _begin(connection, address)
        for migration in MIGRATIONS[present:upto]:
            for statement in migration.statements:
                connection.execute(text(statement.format(**TYPES[address.database])))
            connection.execute(
                schema_versions.insert().values(
                    version=migration.version, applied=time.time(), release=__version__
                )
            )


def check_known(connection: Connection, address: Address) -> int:
    """Which schema there is, if it is not newer than this Encamp; 0: none yet."""
    present = _version(connection, address)
    if present > NEWEST:
        raise EncampError(
            Code.CONFIGURATION,
            f"The manager's store ({address}) was made by a newer Encamp: its schema is "
            f"version {present}, this Encamp ({__version__}) knows versions up to {NEWEST}.",
            "Start the newer Encamp, or put back a backup from before it was started.",
        )
    return present


def _version(connection: Connection, address: Address) -> int:
    if address.database is Database.SQLITE:
        _check_ours(connection, address)
        schema = None
    else:
        schema = SCHEMA
    if not inspect(connection).has_table(schema_versions.name, schema=schema):
        return 0
    return connection.scalar(select(func.max(schema_versions.c.version))) or 0


def _check_ours(connection: Connection, address: Address) -> None:
    application = connection.exec_driver_sql("PRAGMA application_id").scalar_one()
    tables = connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one()
    if tables and application != APPLICATION:
        raise EncampError(
            Code.CONFIGURATION,
            f"{address} is a database of some other program, not a store of Encamp's.",
            "Name another file in 'store' of site.yaml.",
        )


def _begin(connection: Connection, address: Address) -> None:
    if address.database is Database.SQLITE:
        connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION}")
    else:
        connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
    statement = (
        "CREATE TABLE schema_versions "
        "(version INTEGER NOT NULL PRIMARY KEY, applied {real} NOT NULL, release TEXT NOT NULL)"
    )
    connection.exec_driver_sql(statement.format(**TYPES[address.database]))
