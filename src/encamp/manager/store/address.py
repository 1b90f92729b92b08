"""Where the store is: a file of SQLite's, or a database of PostgreSQL's, by the URL a site names.

The password in a URL is for the database alone: what is shown, logged or raised has it masked.
"""

from __future__ import annotations

import enum
from pathlib import Path
from urllib.parse import quote, quote_plus

import msgspec
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from encamp.home import Home
from encamp.model.errors import Code, EncampError

PLAIN = "sqlite"
FILE = "manager.sqlite"
SECRETS = ("password", "sslpassword")
"""What of a URL's query is as secret as its password."""
HINT = "Set 'store' in site.yaml to 'sqlite', or to a URL such as postgresql://user@host/encamp."


class Database(enum.Enum):
    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


DIALECTS = {
    "sqlite": Database.SQLITE,
    "sqlite+pysqlite": Database.SQLITE,
    "postgres": Database.POSTGRESQL,
    "postgresql": Database.POSTGRESQL,
    "postgresql+psycopg": Database.POSTGRESQL,
}
DRIVERS = {Database.SQLITE: "sqlite+pysqlite", Database.POSTGRESQL: "postgresql+psycopg"}


class Address(msgspec.Struct, frozen=True):
    database: Database
    url: URL
    """With its password: SQLAlchemy masks it when it is printed."""
    path: Path | None = None
    """The file, of SQLite."""

    def __str__(self) -> str:
        """Fit for a message."""
        if self.path is not None:
            return str(self.path)
        shown = self.url.set(drivername="postgresql").difference_update_query(SECRETS)
        return shown.render_as_string(hide_password=True)

    def __repr__(self) -> str:
        return f"Address({self})"

    def masked(self, text: str) -> str:
        """A text of somebody else's, without our secrets."""
        secrets = [self.url.password, *(self.url.query.get(name) for name in SECRETS)]
        for secret in secrets:
            if isinstance(secret, str) and secret:
                for spelled in (secret, quote(secret, safe=""), quote_plus(secret)):
                    text = text.replace(spelled, "***")
        return text


def read_address(where: str, home: Home) -> Address:
    if where == PLAIN:
        return _file(home.root / FILE)
    try:
        url = make_url(where)
    except (ArgumentError, ValueError):
        # What could not be read as a URL may still hold a password: it is not shown.
        raise EncampError(Code.CONFIGURATION, "The store's address is not a URL.", HINT) from None
    database = DIALECTS.get(url.drivername)
    if database is None:
        raise EncampError(
            Code.CONFIGURATION,
            f"Encamp does not keep its store in '{url.drivername}', but in SQLite or PostgreSQL.",
            HINT,
        )
    if database is Database.SQLITE:
        if not url.database or url.database == ":memory:" or url.query or url.host:
            raise EncampError(
                Code.CONFIGURATION,
                "A store in SQLite needs a file that outlives the manager.",
                "Write its path after three slashes: sqlite:////var/lib/encamp/manager.sqlite.",
            )
        return _file(home.root / url.database)
    return Address(database, url.set(drivername=DRIVERS[database]))


def _file(path: Path) -> Address:
    """A path that is not absolute is one in the manager's home."""
    url = URL.create(DRIVERS[Database.SQLITE], database=str(path))
    return Address(Database.SQLITE, url, path)
