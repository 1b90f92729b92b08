"""The first thing a manager does with a store that it has the lock of."""

from __future__ import annotations

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from encamp.manager.store.address import Address, Database
from encamp.manager.store.migrations import LEADERSHIP, check_known, migrate
from encamp.manager.store.tenure import Tenure
from encamp.manager.store.troubles import Complaint, complaint


def begin_tenure(connection: Connection, address: Address, tenure: Tenure) -> None:
    """Make it ours, and bring its schema up to date; in this order, if it can be: the latter may
    take long, and others who stand by are to know that we are there."""
    if check_known(connection, address) >= LEADERSHIP:
        _begin(connection, address, tenure)
        migrate(connection, address)
    else:
        migrate(connection, address)
        _begin(connection, address, tenure)


def _begin(connection: Connection, address: Address, tenure: Tenure) -> None:
    try:
        tenure.begin(connection, address.database)
    except DBAPIError as error:
        full = complaint(address, error) in (Complaint.FULL, Complaint.READ_ONLY)
        if not full or address.database is Database.POSTGRESQL:
            raise
        tenure.begin_unwritten()
