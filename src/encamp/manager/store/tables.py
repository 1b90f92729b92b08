"""The tables of the newest schema, for queries. What makes them is in `migrations`."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Double, Integer, LargeBinary, MetaData, Table, Text
from sqlalchemy.types import TypeEngine

metadata = MetaData()

Kind = type[TypeEngine[Any]]


def _key(name: str, kind: Kind) -> Column[Any]:
    return Column(name, kind, primary_key=True)


def _needed(name: str, kind: Kind) -> Column[Any]:
    return Column(name, kind, nullable=False)


def _document() -> Column[Any]:
    return _needed("document", LargeBinary)


schema_versions = Table(
    "schema_versions",
    metadata,
    _key("version", Integer),
    _needed("applied", Double),
    _needed("release", Text),
)

# `number`: in the order in which they were written down. `over_since`: nothing, while it is under
# way. `output`: bytes of its output that have arrived.
commands = Table(
    "commands",
    metadata,
    _key("id", Text),
    _needed("number", BigInteger),
    _needed("host", Text),
    _needed("state", Text),
    Column("over_since", Double),
    _needed("output", BigInteger),
    _document(),
)

outputs = Table(
    "outputs",
    metadata,
    _key("command", Text),
    _key("start", BigInteger),
    _needed("piece", LargeBinary),
)

# `number` and `over_since`: as those of commands.
requests = Table(
    "requests",
    metadata,
    _key("id", Text),
    _needed("number", BigInteger),
    _needed("owner", Text),
    _needed("label", Text),
    _needed("state", Text),
    Column("over_since", Double),
    _document(),
)


def _log(name: str) -> Table:
    """`name`: of the host or the trigger that an entry is about, or of who did it."""
    return Table(
        name,
        metadata,
        _key("number", BigInteger),
        _needed("at", Double),
        _needed("name", Text),
        _document(),
    )


events = _log("events")
judged = _log("judged")
audit = _log("audit")

# `digest`: of the secret, which is not written down.
tokens = Table(
    "tokens",
    metadata,
    _key("id", Text),
    _needed("digest", LargeBinary),
    _document(),
)

hosts = Table(
    "hosts",
    metadata,
    _key("name", Text),
    _document(),
)

kept = Table(
    "kept",
    metadata,
    _key("key", Text),
    _needed("value", LargeBinary),
)

# One row. `store`: tells this one from others. `until`: when the tenure of whoever leads runs out,
# by the database's clock.
leadership = Table(
    "leadership",
    metadata,
    _key("place", BigInteger),
    _needed("store", BigInteger),
    _needed("epoch", BigInteger),
    _needed("instance", Text),
    _needed("host", Text),
    _needed("since", Double),
    _needed("until", Double),
)

# Those that stand by. `seen`: when each last said so.
managers = Table(
    "managers",
    metadata,
    _key("instance", Text),
    _needed("host", Text),
    _needed("since", Double),
    _needed("seen", Double),
    _needed("trouble", Text),
)
