"""What is old is forgotten in small pieces; what is under way is not."""

from __future__ import annotations

import asyncio

import pytest

from encamp.manager.store import retention
from encamp.manager.store.store import Store
from encamp.model.command import CommandState
from encamp.model.host import Host
from tests.manager.store.stores import Place, command, event, judged


async def test_only_what_is_old_and_over_is_forgotten(place: Place) -> None:
    async with await place.open() as store:
        await store.add_events([event("old", at=10.0), event("new", at=100.0)])
        await store.add_judged([judged("old", 10.0), judged("new", 100.0)])
        await store.add_commands([command(name, issued=1.0) for name in ("old", "new", "going")])
        for name in ("old", "going"):
            await store.add_output(name, 0, b"x" * 1000)
        await store.move_command(command("old", state=CommandState.DONE, changed=10.0))
        await store.move_command(command("new", state=CommandState.DONE, changed=100.0))
        await store.save_host(Host(name="node1", since=1.0))
        await store.keep("site", b"x")

        await store.prune(50.0)

        assert [one.sentence for one in await store.events()] == ["new"]
        assert [entry.trigger for entry in await store.judged()] == ["new"]
        assert [record.id for record in await store.commands()] == ["going", "new"]
        assert await store.output("going", 0, 2000) == b"x" * 1000
        assert len(await store.hosts()) == 1
        assert await store.kept("site") == b"x"
    assert place.by_hand("SELECT DISTINCT command FROM outputs") == [("going",)]


async def test_others_are_served_while_much_is_forgotten(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "AT_ONCE", 10)
    monkeypatch.setattr(retention, "OUTPUTS_AT_ONCE", 10)
    await store.add_events([event(at=1.0) for _ in range(1000)])
    names = [f"c{n}" for n in range(100)]
    await store.add_commands(
        [command(name, state=CommandState.DONE, changed=1.0) for name in names]
    )
    await asyncio.gather(*(store.add_output(name, 0, b"x") for name in names))
    pruning = asyncio.create_task(store.prune(50.0))
    await store.add_commands([command("urgent")])
    assert not pruning.done()
    await pruning
    assert await store.events() == []
    assert [record.id for record in await store.commands()] == ["urgent"]
