"""What databases complain about, in our words: one table for each at the boundary."""

from __future__ import annotations

import enum
import sqlite3

import msgspec
from sqlalchemy.exc import DBAPIError, OperationalError

from encamp.manager.store.address import Address, Database
from encamp.model.errors import Code, EncampError


class Complaint(enum.Enum):
    FULL = enum.auto()
    """There is no room to write. Reading goes on."""
    GONE = enum.auto()
    """It does not answer, or is busy: the same again may work in a moment."""
    READ_ONLY = enum.auto()
    CORRUPT = enum.auto()
    NOT_ADMITTED = enum.auto()
    """It is there, and does not let us in."""
    NO_DATABASE = enum.auto()
    NO_HOST = enum.auto()
    """Nobody knows a host of that name."""
    MISTAKE = enum.auto()
    """What we asked makes no sense to it; asking again changes nothing."""


WAITABLE = frozenset({Complaint.FULL, Complaint.GONE, Complaint.READ_ONLY})
"""What may pass without anybody changing the manager's configuration."""

WRONG = frozenset({Complaint.NOT_ADMITTED, Complaint.NO_DATABASE, Complaint.NO_HOST})
"""What is a mistake in it, unless all went well with the same before."""


class Saying(msgspec.Struct, frozen=True):
    """How a complaint is put."""

    code: Code
    sentence: str
    hint: str = ""
    transient: bool = False


SAYINGS = {
    Complaint.FULL: Saying(
        Code.DISK_FULL,
        "There is no room left for the manager's store {where}.",
        "Make room on its disk; the manager goes on by itself then.",
        transient=True,
    ),
    Complaint.GONE: Saying(
        Code.UNREACHABLE,
        "The manager's store {where} does not answer.",
        "See whether its database runs and can be reached; the manager tries again by itself.",
        transient=True,
    ),
    Complaint.READ_ONLY: Saying(
        Code.NOT_PERMITTED,
        "The manager's store {where} can be read, but not written.",
        "See who owns it, how its disk is mounted, or whether the database is a standby.",
    ),
    Complaint.CORRUPT: Saying(
        Code.CORRUPT,
        "The manager's store {where} is damaged, or is not a database.",
        "Put it back from a backup, or move it away: the manager makes a new one.",
    ),
    Complaint.NOT_ADMITTED: Saying(
        Code.NOT_PERMITTED,
        "The database does not let the manager in to its store {where}.",
        "See the user and the password in the URL (or in the file ~/.pgpass), and pg_hba.conf.",
    ),
    Complaint.NO_DATABASE: Saying(
        Code.CONFIGURATION,
        "There is no database for the manager's store {where}.",
        "Make it with createdb, owned by the user in the URL.",
    ),
    Complaint.NO_HOST: Saying(
        Code.CONFIGURATION,
        "Nobody knows the host of the manager's store {where}.",
        "See 'store' in site.yaml, and whether this host can look up names.",
    ),
    Complaint.MISTAKE: Saying(
        Code.INTERNAL,
        "The database of the manager's store {where} refused what it was asked.",
        "This is a mistake in Encamp; please report it with the details.",
    ),
}

SQLITE = {
    sqlite3.SQLITE_FULL: Complaint.FULL,
    sqlite3.SQLITE_BUSY: Complaint.GONE,
    sqlite3.SQLITE_LOCKED: Complaint.GONE,
    sqlite3.SQLITE_IOERR: Complaint.GONE,
    sqlite3.SQLITE_CANTOPEN: Complaint.GONE,
    sqlite3.SQLITE_PROTOCOL: Complaint.GONE,
    sqlite3.SQLITE_READONLY: Complaint.READ_ONLY,
    sqlite3.SQLITE_CORRUPT: Complaint.CORRUPT,
    sqlite3.SQLITE_NOTADB: Complaint.CORRUPT,
    sqlite3.SQLITE_PERM: Complaint.NOT_ADMITTED,
    sqlite3.SQLITE_AUTH: Complaint.NOT_ADMITTED,
}
"""By SQLite's primary result code."""

POSTGRESQL = {
    "53100": Complaint.FULL,
    "25006": Complaint.READ_ONLY,
    "42501": Complaint.NOT_ADMITTED,
    "3D000": Complaint.NO_DATABASE,
    # Two transactions in each other's way, a statement that was cancelled.
    "40": Complaint.GONE,
    "55": Complaint.GONE,
    "08": Complaint.GONE,
    "53": Complaint.GONE,
    "57": Complaint.GONE,
    "58": Complaint.GONE,
    "28": Complaint.NOT_ADMITTED,
    "XX001": Complaint.CORRUPT,
    "XX002": Complaint.CORRUPT,
}
"""By SQLSTATE, or by its class."""

WHILE_CONNECTING = {
    "authentication failed": Complaint.NOT_ADMITTED,
    "no password supplied": Complaint.NOT_ADMITTED,
    "no pg_hba.conf entry": Complaint.NOT_ADMITTED,
    "permission denied for database": Complaint.NOT_ADMITTED,
    'role "': Complaint.NOT_ADMITTED,
    'database "': Complaint.NO_DATABASE,
    "[Errno -2]": Complaint.NO_HOST,
}
"""A server that turns us away at the door gives no SQLSTATE, only words."""


def complaint(address: Address, error: Exception) -> Complaint:
    if not isinstance(error, DBAPIError):
        return Complaint.MISTAKE
    if error.connection_invalidated:
        return Complaint.GONE
    said = error.orig
    if address.database is Database.SQLITE:
        if not isinstance(said, sqlite3.Error):
            return Complaint.MISTAKE
        code = getattr(said, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        return SQLITE.get(code & 0xFF, Complaint.MISTAKE)
    state = getattr(said, "sqlstate", None)
    if state is not None:
        return POSTGRESQL.get(state) or POSTGRESQL.get(state[:2]) or Complaint.MISTAKE
    words = str(said)
    for part, meaning in WHILE_CONNECTING.items():
        if part in words:
            return meaning
    # No server said so: it is about the connection.
    return Complaint.GONE if isinstance(error, OperationalError) else Complaint.MISTAKE


def explained(address: Address, error: Exception) -> EncampError:
    if isinstance(error, EncampError):
        return error
    said = error.orig if isinstance(error, DBAPIError) else repr(error)
    return described(address, complaint(address, error), str(said))


def described(address: Address, meaning: Complaint, detail: str = "") -> EncampError:
    saying = SAYINGS[meaning]
    return EncampError(
        saying.code,
        saying.sentence.format(where=f"({address})"),
        saying.hint,
        transient=saying.transient,
        detail=address.masked(detail.strip()),
    )
