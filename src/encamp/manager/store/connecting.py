"""Getting a connection, and the store to ourselves: two managers on one store would both give out
the same numbers."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from encamp.manager.store import line
from encamp.manager.store.address import Address, Database
from encamp.manager.store.migrations import SCHEMA
from encamp.manager.store.tenure import Tenure
from encamp.manager.store.troubles import Complaint, complaint, described
from encamp.model.errors import Code, EncampError

SETTLING = 5.0
"""Seconds that a manager which has just been killed is given to let go of its store, and a
database that is just starting to be ready."""
POLL = 0.05

POSTGRESQL_ARGUMENTS = {
    "connect_timeout": 5,
    "application_name": "encamp manager",
    # A connection whose other end is gone without a word is given up after some 15 seconds.
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 15000,
}
POSTGRESQL_SETTINGS = {
    "search_path": SCHEMA,
    "synchronous_commit": "on",
    # The server gives up a manager that is gone without a word as soon, and with it the lock.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "2",
    "tcp_user_timeout": "15000",
}
SQLITE_ARGUMENTS = {"timeout": 1.0, "isolation_level": None}


def make_engine(address: Address) -> Engine:
    """Commits by itself: `transactions` says where one begins. One connection, kept by hand."""
    if address.database is Database.SQLITE:
        arguments: dict[str, object] = dict(SQLITE_ARGUMENTS)
    else:
        try:
            import psycopg  # noqa: F401
        except ImportError as error:
            raise EncampError(
                Code.PROGRAM_MISSING,
                "A store in PostgreSQL needs the Python package psycopg, which is not installed.",
                "Install Encamp with its extra 'postgresql': pip install 'encamp[postgresql]'.",
                detail=str(error),
            ) from error
        arguments = {
            name: value
            for name, value in POSTGRESQL_ARGUMENTS.items()
            if name not in address.url.query
        }
    return create_engine(
        address.url,
        connect_args=arguments,
        poolclass=NullPool,
        isolation_level="AUTOCOMMIT",
        hide_parameters=True,
    )


class Possession:
    """The store, as ours alone; and the connection to it."""

    def __init__(self, address: Address, tenure: Tenure | None = None) -> None:
        self.address = address
        self._tenure = tenure
        self._engine = make_engine(address)
        self._lock: int | None = None
        self._process = 0
        """In the server, that our last connection was to."""

    def connect(self, is_over: Callable[[], bool] = lambda: False) -> Connection:
        """A connection that owns the store, with patience for what is just starting or ending; and
        with any patience for whoever owns it now, if that is wanted, until `is_over`."""
        limit = time.monotonic() + SETTLING
        while True:
            try:
                return self._try(is_over)
            except DBAPIError as error:
                starting = getattr(error.orig, "sqlstate", None) == "57P03" or (
                    "starting up" in str(error.orig)
                )
                busy = (
                    self.address.database is Database.SQLITE
                    and complaint(self.address, error) is Complaint.GONE
                )
                if not (starting or busy) or time.monotonic() > limit:
                    raise
            except BlockingIOError:
                if time.monotonic() > limit:
                    raise self._in_use() from None
            time.sleep(POLL)

    def _try(self, is_over: Callable[[], bool]) -> Connection:
        if self.address.path is not None:
            self._lock_file(self.address.path)
        connection = self._engine.connect()
        try:
            if self.address.database is Database.SQLITE:
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")
                # Every commit is on the disk before it is acted upon, also when the power fails.
                connection.exec_driver_sql("PRAGMA synchronous = FULL")
            else:
                for name, value in POSTGRESQL_SETTINGS.items():
                    connection.exec_driver_sql(f"SET {name} TO {value}")
                self._lock_database(connection, is_over)
        except BaseException:
            connection.close()
            raise
        return connection

    def _lock_database(self, connection: Connection, is_over: Callable[[], bool]) -> None:
        tenure = self._tenure
        if tenure is not None and tenure.epoch:
            line.take_again(connection, tenure, self._process)
        elif tenure is not None and tenure.told is not None:
            line.stand(connection, self.address, tenure, is_over)
        else:
            line.take(connection)
        self._process = int(connection.scalar(text("SELECT pg_backend_pid()")) or 0)

    def _in_use(self) -> EncampError:
        elsewhere = self.address.database is Database.POSTGRESQL
        return EncampError(
            Code.WRONG_STATE,
            f"Another manager is using the store ({self.address}).",
            "Stop that one first."
            if elsewhere
            else "Stop that one first; a standby needs a store in PostgreSQL.",
            transient=True,
        )

    def _lock_file(self, path: Path) -> None:
        """SQLite's own locks are let go after each transaction; this one is not. It also makes
        the file, which holds what commands printed, readable by nobody else."""
        if self._lock is not None:
            return
        try:
            lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unopened(self.address, error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Not opened if it is there: closing it would take SQLite's locks of it away.
            if not path.exists():
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except BlockingIOError:
            os.close(lock)
            raise
        except OSError as error:
            os.close(lock)
            raise _unopened(self.address, error) from error
        self._lock = lock

    def close(self) -> None:
        self._engine.dispose()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def forget(connection: Connection) -> None:
    """Let go of a connection, broken or not."""
    with contextlib.suppress(SQLAlchemyError):
        connection.close()


def _unopened(address: Address, error: OSError) -> EncampError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return described(address, Complaint.FULL, str(error))
    if error.errno == errno.EROFS:
        return described(address, Complaint.READ_ONLY, str(error))
    return EncampError(
        Code.NOT_PERMITTED,
        f"Cannot open the manager's store ({address}): {error.strerror}.",
        "Name a file in 'store' of site.yaml that the manager may write to.",
    )
