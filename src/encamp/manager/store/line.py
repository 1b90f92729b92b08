"""The lock of a store in PostgreSQL: whoever has it uses the store, others stand in line for it.

The database lets go of the lock with the connection that holds it, so those in line try to take it
a few times a second: a lock that is waited for with a time limit would write an error into the
database's log each time. Of a manager that lives, and is stuck or cut off, the connection is closed
by those who wait when its tenure has run out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from sqlalchemy import Connection, select, text
from sqlalchemy.exc import DBAPIError

from encamp.manager.store.address import Address
from encamp.manager.store.migrations import LEADERSHIP, check_known
from encamp.manager.store.tables import leadership
from encamp.manager.store.tenure import Tenure, has_run_out
from encamp.model.errors import Code, EncampError

log = logging.getLogger(__name__)

LOCK = 0x456E63616D7002
"""The number of the lock that a manager holds as long as it is connected."""
LOOK = 0.5
"""Seconds after which those in line look again who leads."""
TRY = 0.05
"""Seconds between two tries to take the lock."""
DEFERENCE = 2.0
"""Seconds that one who led has to take its place again."""
WAY = 5.0
"""Seconds that others have to take the place of one who gave it up for them."""
NOT_PERMITTED = "42501"

_HOLDERS = """
    FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND objsubid = 1
      AND classid = (CAST(:lock AS bigint) >> 32)::int::oid
      AND objid = (CAST(:lock AS bigint) & 4294967295)::bigint::oid
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


THROW_OUT = text(f"SELECT pg_terminate_backend(pid) {_HOLDERS}")
THROW_OUT_ONE = text(f"SELECT pg_terminate_backend(pid) {_HOLDERS} AND pid = :process")


def take(connection: Connection) -> None:
    """The lock, if nobody has it."""
    if not _try(connection):
        raise BlockingIOError


def take_again(connection: Connection, tenure: Tenure, former: int) -> None:
    """The lock that we had on a former connection, `former` in the server, which may not know yet
    that nobody is at the other end."""
    if not _try(connection):
        tenure.check(connection)
        connection.execute(THROW_OUT_ONE, {"lock": LOCK, "process": former})
        raise BlockingIOError


def stand(
    connection: Connection, address: Address, tenure: Tenure, is_over: Callable[[], bool]
) -> None:
    """In line, until the lock is ours or nobody wants it any more."""
    # Whoever led when the connection broke is to have its place again.
    if tenure.since:
        _let_pass(connection, is_over)
    elif tenure.gives_way:
        _give_way(connection, tenure.gives_way, is_over)
    if _try(connection):
        return
    while True:
        known = check_known(connection, address) >= LEADERSHIP
        if is_over():
            if known:
                tenure.leave(connection)
            raise EncampError(Code.WRONG_STATE, "The manager's store is not waited for any more.")
        if known:
            tenure.tell(tenure.stand_by(connection))
            if connection.scalar(select(has_run_out(connection))):
                _throw_out(connection)
        if _try_for(connection, LOOK, is_over):
            return


def _let_pass(connection: Connection, is_over: Callable[[], bool]) -> None:
    limit = time.monotonic() + DEFERENCE
    while time.monotonic() < limit and not is_over():
        if connection.scalar(select(has_run_out(connection))):
            return
        time.sleep(TRY)


def _give_way(connection: Connection, epoch: int, is_over: Callable[[], bool]) -> None:
    """Until another leads. Those in line try a few times a second: whoever has just let go is often
    quicker, and would take back what it gave up for them."""
    limit = time.monotonic() + WAY
    while time.monotonic() < limit and not is_over():
        if connection.scalar(select(leadership.c.epoch)) != epoch:
            return
        time.sleep(TRY)


def _throw_out(connection: Connection) -> None:
    try:
        connection.execute(THROW_OUT, {"lock": LOCK})
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != NOT_PERMITTED:
            raise
        log.warning(
            "The manager that leads has not been heard of for too long, and this one may not end"
            " its connection to the database: both should connect as the same user."
        )


def _try(connection: Connection) -> bool:
    query = text("SELECT pg_try_advisory_lock(:lock)")
    return bool(connection.scalar(query, {"lock": LOCK}))


def _try_for(connection: Connection, seconds: float, is_over: Callable[[], bool]) -> bool:
    limit = time.monotonic() + seconds
    while not _try(connection):
        if is_over() or time.monotonic() >= limit:
            return False
        time.sleep(TRY)
    return True
