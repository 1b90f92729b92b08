"""One manager uses a store; others stand by for it, and the former can do no more once they have
it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection

from encamp.home import Home
from encamp.manager.store import line, tenure, worker
from encamp.manager.store.store import Store
from encamp.manager.store.tenure import SupersededError, Tenure
from encamp.model.errors import Code, EncampError
from encamp.model.leader import Leadership
from tests.manager.store.postgres import PostgreSQL, postgresql
from tests.manager.store.stores import Place, command

SECONDS = 30.0
"""A tenure that no busy host loses by mistake."""
SHORT = 4.0
"""One that is to be lost."""
END_HOLDERS = """
    SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted
"""


@pytest.fixture
def url(postgres: PostgreSQL) -> Iterator[str]:
    with postgres.database() as found:
        yield found


@pytest.fixture(scope="module")
def mortal() -> Iterator[PostgreSQL]:
    """A server that the tests may kill."""
    with postgresql() as server:
        yield server


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "LOOK", 0.05)
    monkeypatch.setattr(tenure, "RARELY", 0.1)
    monkeypatch.setattr(worker, "DEFERENCE", 0.1)


class Candidate:
    """A manager that wants to lead."""

    def __init__(
        self, where: str, home: Path, name: str, seconds: float = SECONDS, gives_way: int = 0
    ) -> None:
        self.seen: list[Leadership] = []
        self.tenure = Tenure(
            f"run of {name}", name, seconds=seconds, told=self.seen.append, gives_way=gives_way
        )
        self._where = where
        self._home = Home(home)

    async def open(self) -> Store:
        return await Store.open(self._where, self._home, patience=60.0, tenure=self.tenure)

    async def sees(self, leader: str) -> None:
        """Waits until it stands by for this one."""
        while not (self.seen and (found := self.seen[-1]).leader and found.leader.host == leader):
            await asyncio.sleep(0.01)


async def known(store: Store) -> None:
    """Waits until a manager knows that another stands by."""
    while not store.tenure.standing_by:
        await asyncio.sleep(0.01)


async def test_whoever_stands_by_has_the_store_when_the_former_lets_go(
    url: str, tmp_path: Path
) -> None:
    first, second = Candidate(url, tmp_path, "first"), Candidate(url, tmp_path, "second")
    async with await first.open() as store:
        opening = asyncio.create_task(second.open())
        await second.sees("first")
        await known(store)
        assert [one.host for one in store.tenure.standing_by] == ["second"]
        await store.add_commands([command("c1")])
        assert not opening.done()
    async with await opening as store:
        assert (await store.command("c1")).id == "c1"
        assert second.tenure.epoch > first.tenure.epoch
        assert store.tenure.standing_by == ()
        assert "after the one on first" in store.tenure.announcement


async def test_whoever_hands_over_does_not_take_its_place_again_before_the_other_has_it(
    url: str, tmp_path: Path
) -> None:
    first = Candidate(url, tmp_path, "first")
    async with await first.open():
        pass
    again = Candidate(url, tmp_path, "first", gives_way=first.tenure.epoch)
    waiting = asyncio.create_task(again.open())
    # Nobody has it, and the other is slow.
    await asyncio.sleep(0.5)
    assert not waiting.done()
    second = Candidate(url, tmp_path, "second")
    async with await second.open():
        await again.sees("second")
    async with await waiting:
        assert again.tenure.epoch > second.tenure.epoch


async def test_whoever_hands_over_leads_again_if_nobody_else_does(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "WAY", 0.2)
    first = Candidate(url, tmp_path, "first")
    async with await first.open():
        pass
    again = Candidate(url, tmp_path, "first", gives_way=first.tenure.epoch)
    async with await again.open():
        assert again.tenure.epoch > first.tenure.epoch


async def test_whoever_stands_by_writes_no_errors_into_the_log_of_the_database(
    url: str, postgres: PostgreSQL, tmp_path: Path
) -> None:
    first, second = Candidate(url, tmp_path, "first"), Candidate(url, tmp_path, "second")
    async with await first.open():
        before = postgres.said()
        opening = asyncio.create_task(second.open())
        # It has looked who leads, waited for the lock, and looked again.
        while len(second.seen) < 3:
            await asyncio.sleep(0.01)
        assert "canceling statement" not in postgres.said().removeprefix(before)
        assert "ERROR" not in postgres.said().removeprefix(before)
    async with await opening:
        pass


async def test_whoever_gives_up_standing_by_is_not_there_any_more(url: str, tmp_path: Path) -> None:
    first, second = Candidate(url, tmp_path, "first"), Candidate(url, tmp_path, "second")
    async with await first.open() as store:
        opening = asyncio.create_task(second.open())
        await known(store)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        while store.tenure.standing_by:
            await asyncio.sleep(0.01)


async def test_one_that_is_stuck_loses_the_store_and_can_write_nothing_when_it_goes_on(
    url: str, tmp_path: Path
) -> None:
    go_on, stuck = threading.Event(), threading.Event()

    def hang(connection: Connection) -> None:
        stuck.set()
        go_on.wait()

    first, second = (Candidate(url, tmp_path, name, seconds=SHORT) for name in ("first", "second"))
    store = await first.open()
    opening = asyncio.create_task(second.open())
    await known(store)
    hanging = asyncio.create_task(store.write(hang))
    adding = asyncio.create_task(store.add_commands([command("too-late")]))
    await asyncio.to_thread(stuck.wait)
    superseded = await store.superseded()
    # It has stopped before anybody else could begin.
    assert not opening.done()
    assert not store.tenure.holds()
    assert superseded.code is Code.UNREACHABLE
    for task in (hanging, adding):
        with pytest.raises(SupersededError):
            await task
    async with await opening as later:
        go_on.set()
        with pytest.raises(SupersededError):
            await store.add_commands([command("much-too-late")])
        await later.add_commands([command("c1")])
        assert [record.id for record in await later.commands()] == ["c1"]
    await store.close()


async def test_alone_it_keeps_the_store_however_long_it_was_stuck(url: str, tmp_path: Path) -> None:
    async with await Candidate(url, tmp_path, "first", seconds=0.2).open() as store:
        watching = asyncio.create_task(store.superseded())
        await store.write(lambda connection: time.sleep(0.5))
        await store.add_commands([command("c1")])
        assert store.tenure.holds()
        assert not watching.done()
        watching.cancel()


async def test_one_whose_connection_was_closed_is_told_that_another_took_over(
    url: str, tmp_path: Path, postgres: PostgreSQL
) -> None:
    first, second = Candidate(url, tmp_path, "first"), Candidate(url, tmp_path, "second")
    store = await first.open()
    opening = asyncio.create_task(second.open())
    await second.sees("first")
    with postgres.administrator() as connection:
        connection.execute(END_HOLDERS)
    async with await opening as later:
        superseded = await store.superseded()
        assert "Another manager has used the store" in superseded.sentence
        await later.add_commands([command("c1")])
    await store.close()


async def test_a_connection_that_breaks_is_made_anew_by_whoever_leads(
    url: str, tmp_path: Path
) -> None:
    """Though the server has not noticed yet that the former is broken."""
    async with await Candidate(url, tmp_path, "first").open() as store:
        with psycopg.connect(url, autocommit=True) as other:
            # As if it were our own former connection.
            process = other.info.backend_pid
            store._worker._possession._process = process
            other.execute(END_HOLDERS)
            other.execute("SELECT pg_advisory_lock(%s)", (line.LOCK,))
            await store.add_commands([command("c1")])


async def test_the_database_is_waited_for_and_whoever_led_has_its_place_again(
    mortal: PostgreSQL, tmp_path: Path
) -> None:
    with mortal.database() as url:
        first, second = Candidate(url, tmp_path, "first"), Candidate(url, tmp_path, "second")
        async with await first.open() as store:
            opening = asyncio.create_task(second.open())
            await second.sees("first")
            await asyncio.to_thread(mortal.kill)
            while "does not answer" not in second.seen[-1].trouble:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(mortal.start)
            await second.sees("first")
            await store.add_commands([command("c1")])
            assert store.tenure.holds()
        async with await opening:
            pass


async def test_a_database_that_is_away_at_first_is_waited_for(
    mortal: PostgreSQL, tmp_path: Path
) -> None:
    with mortal.database() as url:
        mortal.kill()
        candidate = Candidate(url, tmp_path, "first")
        opening = asyncio.create_task(candidate.open())
        while not candidate.seen:
            await asyncio.sleep(0.01)
        assert "does not answer" in candidate.seen[-1].trouble
        await asyncio.to_thread(mortal.start)
        async with await opening as store:
            await store.add_commands([command("c1")])


async def test_whoever_is_not_let_in_does_not_wait(postgres: PostgreSQL, tmp_path: Path) -> None:
    with postgres.database() as url:
        wrong = postgres.url(url.rsplit("/", 1)[1], "wrong")
        for where, code in (
            (wrong, Code.NOT_PERMITTED),
            (postgres.url("nowhere"), Code.CONFIGURATION),
            ("postgresql://me@nowhere.invalid/encamp", Code.CONFIGURATION),
        ):
            with pytest.raises(EncampError) as caught:
                await Candidate(where, tmp_path, "first").open()
            assert caught.value.code is code


async def test_epochs_grow_and_are_never_behind_the_time(place: Place) -> None:
    epochs = []
    for _ in range(3):
        async with await place.open() as store:
            epochs.append(store.tenure.epoch)
    assert epochs == sorted(set(epochs))
    # A store that is new, or was put back, begins after all that were before it.
    assert epochs[0] >= int(time.time()) - 60


async def test_the_clocks_of_the_managers_do_not_matter(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("encamp.manager.store.tenure.time.time", lambda: 0.0)
    first, second = Candidate(url, tmp_path, "first"), Candidate(url, tmp_path, "second")
    async with await first.open() as store:
        opening = asyncio.create_task(second.open())
        await second.sees("first")
        monkeypatch.setattr("encamp.manager.store.tenure.time.time", lambda: 1e10)
        await known(store)
        await store.add_commands([command("c1")])
        assert not opening.done()
        assert store.tenure.holds()
    async with await opening:
        assert first.tenure.epoch < second.tenure.epoch < 1e10
