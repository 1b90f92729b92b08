"""Every test of the store is run on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from encamp.home import Home
from encamp.manager.store import worker
from encamp.manager.store.store import Store
from tests.manager.store.postgres import PostgreSQL, postgresql
from tests.manager.store.stores import Place


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgreSQL]:
    with postgresql() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Where a store can be opened, again and again."""
    if request.param == "sqlite":
        yield Place("sqlite", Home(tmp_path))
        return
    server: PostgreSQL = request.getfixturevalue("postgres")
    with server.database() as url:
        yield Place(url, Home(tmp_path))


@pytest.fixture
async def store(place: Place) -> AsyncIterator[Store]:
    async with await place.open() as store:
        yield store


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried again is tried again soon."""
    monkeypatch.setattr(worker, "LONGEST_PAUSE", 0.1)
