"""A store made by any former Encamp is brought up to date; one made by a newer one is refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest
from sqlalchemy import Engine, inspect

from encamp.manager.store import migrations
from encamp.manager.store.address import read_address
from encamp.manager.store.connecting import Possession, make_engine
from encamp.manager.store.migrations import MIGRATIONS, NEWEST, SCHEMA
from encamp.manager.store.tables import metadata
from encamp.model.errors import Code, EncampError
from tests.manager.store.stores import Place, command, event, judged

FORMER = [migration.version for migration in MIGRATIONS[:-1]]


def make_former(place: Place, version: int) -> None:
    address = read_address(place.where, place.home)
    possession = Possession(address)
    with possession.connect() as connection:
        migrations.migrate(connection, address, version)
    possession.close()


def schema(place: Place) -> dict[str, Any]:
    """Every table's columns and indexes, as the database has them."""
    engine: Engine = make_engine(read_address(place.where, place.home))
    name = SCHEMA if engine.dialect.name == "postgresql" else None
    look = inspect(engine)
    found = {
        table: (
            [
                (column["name"], str(column["type"]), column["nullable"])
                for column in look.get_columns(table, schema=name)
            ],
            look.get_pk_constraint(table, schema=name)["constrained_columns"],
            sorted(str(index["name"]) for index in look.get_indexes(table, schema=name)),
        )
        for table in look.get_table_names(schema=name)
    }
    engine.dispose()
    return found


def test_versions_count_up_from_one() -> None:
    assert [migration.version for migration in MIGRATIONS] == list(range(1, NEWEST + 1))


@pytest.mark.parametrize("version", FORMER)
async def test_a_store_of_a_former_version_is_brought_up_to_date(
    place: Place, version: int
) -> None:
    make_former(place, version)
    place.by_hand(
        "INSERT INTO commands (id, number, host, state, output, document) "
        "VALUES ('c1', 7, 'node1', 'waiting', 0, :command)",
        command=msgspec.json.encode(command("c1")),
    )
    place.by_hand(
        "INSERT INTO events (number, at, name, document) VALUES (41, 1.0, 'node1', :event)",
        event=msgspec.json.encode(event("Long ago.")),
    )
    async with await place.open() as store:
        assert await store.command("c1") == command("c1")
        assert [one.sentence for one in await store.events()] == ["Long ago."]
        assert [one.number for one in await store.add_events([event()])] == [42]
        await store.add_judged([judged("t")])
        assert await store.judged() == [judged("t")]
    versions = place.by_hand("SELECT version FROM schema_versions ORDER BY version")
    assert [row.version for row in versions] == list(range(1, NEWEST + 1))


async def test_the_migrations_make_the_tables_that_queries_are_about(place: Place) -> None:
    async with await place.open():
        pass
    made = schema(place)
    assert set(made) == set(metadata.tables)
    for name, table in metadata.tables.items():
        columns, keys, _ = made[name]
        assert [(column, nullable) for column, _, nullable in columns] == [
            (column.name, column.nullable) for column in table.columns
        ]
        assert keys == [column.name for column in table.primary_key]


@pytest.mark.parametrize("version", FORMER)
async def test_an_upgraded_store_is_like_a_new_one(place: Place, version: int) -> None:
    make_former(place, version)
    async with await place.open():
        pass
    upgraded = schema(place)
    if place.where == "sqlite":
        (place.home.root / "manager.sqlite").unlink()
    else:
        place.by_hand(f"DROP SCHEMA {SCHEMA} CASCADE")
    async with await place.open():
        pass
    assert schema(place) == upgraded


async def test_a_store_of_a_newer_encamp_is_refused_and_left_alone(place: Place) -> None:
    async with await place.open() as store:
        await store.add_commands([command("c1")])
    place.by_hand("INSERT INTO schema_versions VALUES (99, 1.0, '9.9')")
    before = schema(place)
    with pytest.raises(EncampError, match="newer Encamp: its schema is version 99") as caught:
        await place.open()
    assert caught.value.code is Code.CONFIGURATION
    assert schema(place) == before


async def test_an_upgrade_that_breaks_off_leaves_the_former_schema(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_former(place, 1)
    before = schema(place)
    first, second = MIGRATIONS[:2]
    broken = msgspec.structs.replace(second, statements=(*second.statements, "NONSENSE"))
    monkeypatch.setattr(migrations, "MIGRATIONS", (first, broken))
    with pytest.raises(EncampError) as caught:
        await place.open()
    assert caught.value.code is Code.INTERNAL
    assert schema(place) == before
    monkeypatch.undo()
    async with await place.open() as store:
        await store.add_judged([judged("t")])


MIGRATE = """
import sys
from pathlib import Path
from encamp.home import Home
from encamp.manager.store.address import read_address
from encamp.manager.store.connecting import make_engine
from encamp.manager.store.migrations import SCHEMA, migrate
address = read_address(sys.argv[1], Home(Path(sys.argv[2])))
with make_engine(address).connect() as connection:
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SET search_path TO {SCHEMA}")
    sys.stdin.readline()
    migrate(connection, address)
"""


def test_of_two_that_upgrade_at_once_one_does_it(place: Place) -> None:
    words = [sys.executable, "-c", MIGRATE, place.where, str(place.home.root)]
    racers = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)
    ]
    try:
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write(b"go\n")
            racer.stdin.flush()
        for racer in racers:
            _, errors = racer.communicate(timeout=60)
            assert racer.returncode == 0, errors.decode()
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()
    versions = place.by_hand("SELECT version FROM schema_versions ORDER BY version")
    assert [row.version for row in versions] == list(range(1, NEWEST + 1))
