"""What can go wrong when a store is opened is said in a sentence, and never with its password."""

from __future__ import annotations

import os
import socket
import sqlite3
import sys
import traceback
from pathlib import Path

import pytest

from encamp.home import Home
from encamp.manager.store import connecting
from encamp.manager.store.address import read_address
from encamp.manager.store.store import Store
from encamp.model.errors import Code, EncampError
from tests.manager.store.postgres import PASSWORD, PostgreSQL
from tests.manager.store.stores import Place, command

SECRET = "hunter2hunter2"


async def refusal(where: str, home: Path) -> EncampError:
    with pytest.raises(EncampError) as caught:
        await Store.open(where, Home(home))
    error = caught.value
    told = "".join(traceback.format_exception(error)) + repr(error) + error.detail + error.hint
    assert SECRET not in told
    assert PASSWORD not in told
    return error


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (f"mysql://root:{SECRET}@host/db", "does not keep its store in 'mysql'"),
        (f"root:{SECRET}@host", "is not a URL"),
        (f"postgresql://root:{SECRET}@host:port/db", "is not a URL"),
        ("", "is not a URL"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
    ],
)
async def test_an_address_that_makes_no_sense_is_refused(
    where: str, said: str, tmp_path: Path
) -> None:
    error = await refusal(where, tmp_path)
    assert error.code is Code.CONFIGURATION
    assert said in error.sentence
    assert list(tmp_path.iterdir()) == []


def test_an_address_is_shown_without_its_secrets(tmp_path: Path) -> None:
    where = f"postgresql://me:{SECRET}@host/db?sslpassword={SECRET}&sslmode=require"
    address = read_address(where, Home(tmp_path))
    assert str(address) == "postgresql://me:***@host/db?sslmode=require"
    assert SECRET not in repr(address)
    assert address.masked(f"no {SECRET}!") == "no ***!"


async def test_a_missing_driver_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    error = await refusal("postgresql://host/db", tmp_path)
    assert error.code is Code.PROGRAM_MISSING
    assert "encamp[postgresql]" in error.hint


async def test_a_wrong_password_is_told_from_a_missing_database(
    postgres: PostgreSQL, tmp_path: Path
) -> None:
    with postgres.database() as url:
        name = url.rsplit("/", 1)[1]
        error = await refusal(postgres.url(name, SECRET), tmp_path)
        assert error.code is Code.NOT_PERMITTED
        assert "does not let the manager in" in error.sentence
        assert not error.transient
    error = await refusal(postgres.url("nowhere"), tmp_path)
    assert error.code is Code.CONFIGURATION
    assert "There is no database" in error.sentence


async def test_a_database_we_may_not_write_to_is_refused(
    postgres: PostgreSQL, tmp_path: Path
) -> None:
    with postgres.database() as url:
        name = url.rsplit("/", 1)[1]
        with postgres.administrator() as connection:
            connection.execute(f"ALTER DATABASE {name} OWNER TO postgres")
        assert (await refusal(url, tmp_path)).code is Code.NOT_PERMITTED


async def test_a_server_that_does_not_answer_may_later(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    error = await refusal(f"postgresql://me:{SECRET}@127.0.0.1:{port}/db", tmp_path)
    assert error.code is Code.UNREACHABLE
    assert error.transient


async def test_the_unix_socket_needs_no_password(postgres: PostgreSQL, tmp_path: Path) -> None:
    with postgres.database() as url:
        where = postgres.socket_url(url.rsplit("/", 1)[1])
        async with await Store.open(where, Home(tmp_path)) as store:
            await store.add_commands([command("c1")])


async def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "manager.sqlite"
    path.write_bytes(b"This is a letter to my aunt. " * 100)
    error = await refusal("sqlite", tmp_path)
    assert error.code is Code.CORRUPT
    assert path.read_bytes().startswith(b"This is a letter to my aunt. ")


async def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "manager.sqlite"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE bookmarks (url TEXT)")
    other.commit()
    other.close()
    error = await refusal("sqlite", tmp_path)
    assert error.code is Code.CONFIGURATION
    assert "some other program" in error.sentence
    other = sqlite3.connect(path)
    assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("bookmarks",)]
    other.close()


async def test_a_damaged_file_is_called_damaged(tmp_path: Path) -> None:
    async with await Store.open("sqlite", Home(tmp_path)) as store:
        await store.add_commands([command(f"c{n}") for n in range(1000)])
    path = tmp_path / "manager.sqlite"
    data = bytearray(path.read_bytes())
    data[100:8192] = os.urandom(8092)
    path.write_bytes(data)
    assert (await refusal("sqlite", tmp_path)).code is Code.CORRUPT


async def test_a_place_that_is_not_there_is_named(tmp_path: Path) -> None:
    error = await refusal("sqlite:///missing/store.sqlite", tmp_path)
    assert error.code is Code.NOT_PERMITTED
    assert str(tmp_path / "missing" / "store.sqlite") in error.sentence


async def test_what_commands_printed_is_readable_by_nobody_else(tmp_path: Path) -> None:
    async with await Store.open("sqlite:///other.sqlite", Home(tmp_path)) as store:
        await store.add_commands([command("c1")])
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert "other.sqlite-wal" in modes
    assert set(modes.values()) == {0o600}


async def test_two_managers_do_not_share_a_store(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "SETTLING", 0.3)
    async with await place.open() as store:
        with pytest.raises(EncampError, match="Another manager") as caught:
            await place.open()
        assert caught.value.code is Code.WRONG_STATE
        await store.add_commands([command("c1")])
    async with await place.open() as store:
        assert (await store.command("c1")).id == "c1"


async def test_a_closed_store_says_so(place: Place) -> None:
    store = await place.open()
    await store.close()
    await store.close()
    with pytest.raises(EncampError, match="has been closed"):
        await store.add_commands([command("c1")])
