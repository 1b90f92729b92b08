"""Whoever is killed, the manager or the database: what was acknowledged is there, once."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection

from encamp.home import Home
from encamp.manager.store import worker
from encamp.manager.store.address import Database
from encamp.manager.store.store import Store
from encamp.manager.store.transactions import transaction
from encamp.model.command import CommandState
from encamp.model.errors import Code, EncampError
from encamp.model.host import Host
from tests.manager.store.crash_writer import LINE
from tests.manager.store.postgres import PostgreSQL, postgresql
from tests.manager.store.stores import Place, command, event, judged

ROOT = Path(__file__).parents[3]
LIVES = 6
ORDER = [CommandState.WAITING, CommandState.RUNNING, CommandState.DONE]


@pytest.fixture(scope="module")
def careful() -> Iterator[PostgreSQL]:
    """A server that waits for its disk, and that the tests may kill."""
    with postgresql(fsync=True) as server:
        yield server


async def test_what_a_killed_manager_acknowledged_is_there(place: Place) -> None:
    words = [sys.executable, "-m", "tests.manager.store.crash_writer"]
    words += [place.where, str(place.home.root), str(LIVES)]
    done = await asyncio.to_thread(
        subprocess.run, words, cwd=ROOT, check=True, stdout=subprocess.PIPE, timeout=120
    )
    said = [json.loads(line) for line in done.stdout.splitlines()]
    states = {id: state for kind, id, state in said if kind == "command"}
    lengths = {id: length for kind, id, length in said if kind == "output"}
    events = {number: sentence for kind, number, sentence in said if kind == "event"}
    assert len({id.split("-")[0] for id in states}) == LIVES

    async with await place.open() as store:
        records = {record.id: record for record in await store.commands(last=1_000_000)}
        for id, state in states.items():
            assert ORDER.index(records[id].state) >= ORDER.index(CommandState(state))
        for id, length in lengths.items():
            assert records[id].output >= length
            if length:
                assert await store.output(id, 0, length) == (LINE * 2)[:length]
        found = await store.events()
        assert len({one.number for one in found}) == len({one.sentence for one in found})
        assert len(found) == len({one.number for one in found})
        assert events.items() <= {one.number: one.sentence for one in found}.items()
        (after,) = await store.add_events([event()])
        assert after.number > max(events)


async def test_a_database_that_is_killed_and_started_again_loses_and_doubles_nothing(
    careful: PostgreSQL, tmp_path: Path
) -> None:
    troubles: list[str] = []
    issued: list[str] = []
    over = asyncio.Event()

    async def issue(caller: int) -> None:
        count = 0
        while not over.is_set():
            id = f"{caller}-{count}"
            await store.add_commands([command(id)])
            await store.add_output(id, 0, LINE)
            await store.move_command(command(id, state=CommandState.DONE))
            await store.add_events([event(id)])
            issued.append(id)
            count += 1

    async def progress() -> None:
        before = len(issued)
        while len(issued) < before + 20 and not any(caller.done() for caller in callers):
            await asyncio.sleep(0.01)

    with careful.database() as url:
        async with await Store.open(url, Home(tmp_path)) as store:
            store.watch_trouble(troubles.append)
            callers = [asyncio.create_task(issue(caller)) for caller in range(5)]
            for _ in range(2):
                await progress()
                await asyncio.to_thread(careful.kill)
                await asyncio.sleep(0.1)
                await asyncio.to_thread(careful.start)
            await progress()
            over.set()
            await asyncio.gather(*callers)
            assert store.trouble == ""
            records = await store.commands(last=1_000_000)
            assert sorted(record.id for record in records) == sorted(issued)
            assert {(record.state, record.output) for record in records} == {
                (CommandState.DONE, len(LINE))
            }
            sentences = [one.sentence for one in await store.events()]
            assert sorted(sentences) == sorted(issued)
            assert store.dropped == 0
    assert ["does not answer" in trouble for trouble in troubles] == [True, False, True, False]


async def test_while_the_database_is_gone_callers_wait_for_a_bounded_time(
    careful: PostgreSQL, tmp_path: Path
) -> None:
    with careful.database() as url:
        async with await Store.open(url, Home(tmp_path), patience=0.3) as store:
            await store.add_commands([command("before")])
            await asyncio.to_thread(careful.kill)
            try:
                for question in (
                    store.add_commands([command("c1")]),
                    store.move_command(command("before", state=CommandState.DONE)),
                    store.commands(),
                ):
                    with pytest.raises(EncampError) as caught:
                        await question
                    assert caught.value.code is Code.UNREACHABLE
                    assert caught.value.transient
                assert "does not answer" in store.trouble
                # These may wait.
                (happened,) = await store.add_events([event("meanwhile")])
                await store.add_judged([judged("t")])
                await store.save_host(Host(name="node1"))
                assert happened.number == 1
            finally:
                await asyncio.to_thread(careful.start)
            while store.trouble:
                await asyncio.sleep(0.01)
            assert await store.events() == [happened]
            assert await store.judged() == [judged("t")]
            assert await store.hosts() == [Host(name="node1")]
            assert [record.id for record in await store.commands()] == ["before"]
            assert (await store.command("before")).state is CommandState.WAITING
        async with await Store.open(url, Home(tmp_path)) as store:
            assert await store.events() == [happened]


async def test_a_commit_whose_answer_was_lost_is_not_done_twice(
    postgres: PostgreSQL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose = 0

    @contextmanager
    def unanswered(connection: Connection, database: Database, *, writes: bool) -> Iterator[None]:
        nonlocal lose
        with transaction(connection, database, writes=writes):
            yield
        if writes and lose:
            lose -= 1
            # It is committed, and the connection breaks before anybody knows.
            connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")

    monkeypatch.setattr(worker, "transaction", unanswered)
    with postgres.database() as url:
        async with await Store.open(url, Home(tmp_path)) as store:
            lose = 1
            await store.add_commands([command("c1")])
            lose = 1
            assert await store.add_output("c1", 0, b"hello") == 5
            lose = 1
            moved = await store.move_command(command("c1", state=CommandState.DONE, value=1))
            assert (moved.state, moved.value) == (CommandState.DONE, 1)
            lose = 1
            happened = await store.add_events([event("one"), event("two")])
            while store.trouble:
                await asyncio.sleep(0.01)
            assert lose == 0
            assert await store.commands() == [moved]
            assert await store.output("c1", 0, 10) == b"hello"
            assert await store.events() == happened
            assert [one.number for one in happened] == [1, 2]


async def test_a_manager_that_was_cut_off_does_not_write_after_another_took_over(
    postgres: PostgreSQL, tmp_path: Path
) -> None:
    with postgres.database() as url:
        async with await Store.open(url, Home(tmp_path), patience=0.1) as former:
            await former.add_commands([command("c1")])
            with postgres.administrator() as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = 'encamp manager'"
                )
            async with await Store.open(url, Home(tmp_path)) as new:
                await new.add_commands([command("c2")])
            with pytest.raises(EncampError):
                await former.add_commands([command("c3")])
            while "Another manager has used the store" not in former.trouble:
                await asyncio.sleep(0.01)
        async with await Store.open(url, Home(tmp_path)) as new:
            assert [record.id for record in await new.commands()] == ["c2", "c1"]


async def test_a_file_that_another_program_has_locked_is_waited_for(tmp_path: Path) -> None:
    troubles: list[str] = []
    async with await Store.open("sqlite", Home(tmp_path)) as store:
        store.watch_trouble(troubles.append)
        other = sqlite3.connect(tmp_path / "manager.sqlite", isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
            adding = asyncio.create_task(store.add_commands([command("c1")]))
            while not store.trouble:
                await asyncio.sleep(0.01)
            assert not adding.done()
            other.execute("ROLLBACK")
        finally:
            other.close()
        await adding
        while store.trouble:
            await asyncio.sleep(0.01)
    assert ["locked" in trouble for trouble in troubles] == [True, False]
