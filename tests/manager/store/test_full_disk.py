"""A full disk: whoever must write is told, everybody else goes on, and it passes by itself."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from encamp.home import Home
from encamp.manager.store import log
from encamp.model.command import CommandState
from encamp.model.errors import Code, EncampError
from encamp.model.host import Host
from tests.manager.store.postgres import PostgreSQL
from tests.manager.store.stores import Place, command, event, judged

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")


@contextmanager
def small_disk(directory: Path, size: str) -> Iterator[None]:
    directory.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0777", "encamp", directory], check=True
    )
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def cramped(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Place, Path]]:
    """A store on a small disk, and where that disk is."""
    if request.param == "sqlite":
        disk = tmp_path / "disk"
        with small_disk(disk, "4m"):
            yield Place("sqlite", Home(disk)), disk
        return
    server: PostgreSQL = request.getfixturevalue("postgres")
    # The tables on a disk of their own: a server that cannot write its own log ends.
    disk = server.directory / "disk"
    with small_disk(disk, "24m"), server.administrator() as connection:
        tables = disk / "tables"
        tables.mkdir(mode=0o700)
        owner = server.directory.stat()
        os.chown(tables, owner.st_uid, owner.st_gid)
        connection.execute(f"CREATE TABLESPACE small LOCATION '{tables}'")
        try:
            with server.database("TABLESPACE small") as url:
                yield Place(url, Home(tmp_path)), disk
        finally:
            connection.execute("DROP TABLESPACE small")
    disk.rmdir()


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 4096):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
    return filler


@root_only
async def test_a_full_disk_is_told_borne_and_recovered_from(
    cramped: tuple[Place, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, disk = cramped
    troubles: list[str] = []
    async with await place.open() as store:
        store.watch_trouble(troubles.append)
        await store.add_commands([command("c1")])
        await store.add_output("c1", 0, b"hello")
        await store.add_events([event("before")])
        filler = fill(disk)

        with pytest.raises(EncampError, match="no room left") as caught:
            await store.add_commands([command("c2", arguments={"x": os.urandom(200_000).hex()})])
        assert caught.value.code is Code.DISK_FULL
        assert caught.value.transient
        assert "no room left" in store.trouble

        # Reading goes on, and what may wait does.
        assert [record.id for record in await store.commands()] == ["c1"]
        assert await store.output("c1", 0, 10) == b"hello"
        (happened,) = await store.add_events([event("during", facts={"x": "y" * 100_000})])
        await store.add_judged([judged("t")])
        await store.save_host(Host(name="node1"))
        assert [one.sentence for one in await store.events()] == ["before", "during"]
        assert await store.hosts() == [Host(name="node1")]

        # As much as there is memory for; the rest is counted.
        monkeypatch.setattr(log, "LARGEST_BACKLOG", 150_000)
        dropped = await store.add_events([event("large", facts={"x": "y" * 100_000})] * 3)
        assert [one.number for one in dropped] == [0, 0, 0]
        assert store.dropped == 3

        filler.unlink()
        await until(lambda: not store.trouble)
        await store.add_commands([command("c2")])
        await store.move_command(command("c1", state=CommandState.DONE))
        (after,) = await store.add_events([event("after")])
        assert after.number == happened.number + 1
    assert ["no room left" in trouble for trouble in troubles] == [True, False]
    async with await place.open() as store:
        assert [one.sentence for one in await store.events()] == ["before", "during", "after"]
        assert [record.id for record in await store.commands()] == ["c2", "c1"]
        assert await store.judged() == [judged("t")]
        assert await store.hosts() == [Host(name="node1")]


@root_only
async def test_a_store_cannot_be_made_on_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, "1m"):
        fill(disk)
        with pytest.raises(EncampError) as caught:
            await Place("sqlite", Home(disk)).open()
        assert caught.value.code is Code.DISK_FULL


async def until(fulfilled: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not fulfilled():
        assert time.monotonic() < limit
        await asyncio.sleep(0.01)
