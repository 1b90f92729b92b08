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

# `number` and `over_since`: as those of commands.
requests = Table(
    "requests",
    metadata,
    Column("id", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("owner", Text, nullable=False),
    Column("label", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("over_since", Double),
    Column("document", LargeBinary, nullable=False),
)


def _log(name: str) -> Table:
    """`name`: of the host or the trigger that an entry is about, or of who did it."""
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
audit = _log("audit")

# `digest`: of the secret, which is not written down.
tokens = Table(
    "tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    Column("document", LargeBinary, nullable=False),
)

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

# One row. `store`: tells this one from others. `until`: when the tenure of whoever leads runs out,
# by the database's clock.
leadership = Table(
    "leadership",
    metadata,
    Column("place", BigInteger, primary_key=True),
    Column("store", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("instance", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("since", Double, nullable=False),
    Column("until", Double, nullable=False),
)

# Those that stand by. `seen`: when each last said so.
managers = Table(
    "managers",
    metadata,
    Column("instance", Text, primary_key=True),
    Column("host", Text, nullable=False),
    Column("since", Double, nullable=False),
    Column("seen", Double, nullable=False),
    Column("trouble", Text, nullable=False),
)
