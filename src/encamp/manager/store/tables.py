"""The tables of the newest schema, for queries. What makes them is in `migrations`."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Integer, LargeBinary, MetaData, Table, Text

metadata = MetaData()

schema_versions = Table(
    "schema_versions",
    metadata,
    Column("version", Integer, primary_key=True),
    Column("applied", Double, nullable=False),
    Column("release", Text, nullable=False),
)

# `number`: in the order in which they were written down. `over_since`: nothing, while it is under
# way. `output`: bytes of its output that have arrived.
commands = Table(
    "commands",
    metadata,
    Column("id", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("host", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("over_since", Double),
    Column("output", BigInteger, nullable=False),
    Column("document", LargeBinary, nullable=False),
)

outputs = Table(
    "outputs",
    metadata,
    Column("command", Text, primary_key=True),
    Column("start", BigInteger, primary_key=True),
    Column("piece", LargeBinary, nullable=False),
)


def _log(name: str) -> Table:
    """`name`: of the host or the trigger that an entry is about."""
    return Table(
        name,
        metadata,
        Column("number", BigInteger, primary_key=True),
        Column("at", Double, nullable=False),
        Column("name", Text, nullable=False),
        Column("document", LargeBinary, nullable=False),
    )


events = _log("events")
judged = _log("judged")

hosts = Table(
    "hosts",
    metadata,
    Column("name", Text, primary_key=True),
    Column("document", LargeBinary, nullable=False),
)

kept = Table(
    "kept",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)
