"""However many entries there are, what is asked for is found by an index."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from sqlalchemy import Connection, Engine
from sqlalchemy import event as engine_events

from encamp.manager.store.address import read_address
from encamp.manager.store.connecting import Possession
from encamp.model.command import CommandState
from tests.manager.store.stores import Place, command, event

ENTRIES = 20_000
COUNTING = {
    "sqlite": "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < :entries)",
    "postgresql": "WITH n(n) AS (SELECT generate_series(1, :entries))",
}
BYTES = {"sqlite": "BLOB", "postgresql": "BYTEA"}
LOOKING_AT_ALL = ("SCAN", "Seq Scan")
BY_INDEX = ("SCAN events USING INDEX", "SCAN commands USING INDEX")
"""SQLite calls it so, too, when it walks along an index and stops when it has enough."""


def fill(place: Place) -> None:
    kind = "sqlite" if place.where == "sqlite" else "postgresql"
    columns = {
        "events": "n, n, 'node' || (n % 100)",
        "commands": "'c' || n, n, 'node' || (n % 100), 'done', n, 0",
    }
    documents = {"events": event(), "commands": command("c1", state=CommandState.DONE)}
    for table, values in columns.items():
        place.by_hand(
            f"INSERT INTO {table} {COUNTING[kind]} "
            f"SELECT {values}, CAST(:document AS {BYTES[kind]}) FROM n",
            entries=ENTRIES,
            document=msgspec.json.encode(documents[table]),
        )
    place.by_hand("ANALYZE")


@pytest.fixture
def asked() -> Iterator[list[tuple[str, object]]]:
    """The questions that the database is asked."""
    questions: list[tuple[str, object]] = []

    def note(
        connection: Connection, cursor: object, statement: str, parameters: object, *rest: object
    ) -> None:
        if statement.startswith(("SELECT", "DELETE")):
            questions.append((statement, parameters))

    engine_events.listen(Engine, "before_cursor_execute", note)
    yield questions
    engine_events.remove(Engine, "before_cursor_execute", note)


async def test_the_latest_are_found_without_looking_at_all(
    place: Place, asked: list[tuple[str, object]]
) -> None:
    async with await place.open():
        pass
    fill(place)
    async with await place.open() as store:
        await store.add_commands([command("new")])
        asked.clear()
        assert len(await store.events(last=100)) == 100
        assert len(await store.events(since=ENTRIES - 10)) == 10
        assert len(await store.events(last=100, hosts=["node1"])) == 100
        assert len(await store.commands(last=100)) == 100
        assert len(await store.commands(last=100, hosts=["node1"])) == 100
        assert len(await store.under_way()) == 1
        await store.command("c12345")
        await store.prune(2.0)
        questions = list(asked)
    assert len(questions) >= 10
    possession = Possession(read_address(place.where, place.home))
    with possession.connect() as connection:
        explain = "EXPLAIN QUERY PLAN " if place.where == "sqlite" else "EXPLAIN "
        for statement, parameters in questions:
            plan = connection.exec_driver_sql(explain + statement, parameters).all()  # type: ignore[arg-type]
            for step in plan:
                words = str(step[-1])
                looks_at_all = any(part in words for part in LOOKING_AT_ALL)
                big = "events" in words or "commands" in words
                if big and looks_at_all and not any(part in words for part in BY_INDEX):
                    pytest.fail(f"{statement}\n{plan}")
    possession.close()
