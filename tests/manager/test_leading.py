"""When a manager that leads is of no use any more, and when that only looks so."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from encamp.bus.local import LocalBus
from encamp.bus.refusals import outranked
from encamp.door.questions import CreateToken
from encamp.home import Home
from encamp.manager.leading import HandedOverError, Leading
from encamp.manager.store.tenure import SupersededError
from encamp.model.errors import EncampError
from encamp.model.site import Site
from tests.manager.playing import ROOT, managed, until


@dataclass
class PlayedBus:
    was_tried: bool = False
    is_up: bool = False


async def test_a_manager_that_hears_of_another_on_the_bus_waits_for_its_store_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store may be out of reach; what was asked meanwhile is refused at once."""
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(tmp_path / "etc"))
    outranked_now, go_on = asyncio.Event(), threading.Event()

    async def ended(bus: LocalBus) -> EncampError:
        await outranked_now.wait()
        return outranked(bus.name)

    monkeypatch.setattr(LocalBus, "ended", ended)
    async with managed(tmp_path / "home") as bench:
        stuck = asyncio.create_task(bench.manager.store.write(lambda connection: go_on.wait()))
        try:
            asking = asyncio.create_task(bench.answers(CreateToken(lifetime=60.0), ROOT))
            # It is written down who asks for it, before it is done.
            await until(lambda: bench.manager.auditor._number)
            outranked_now.set()
            with pytest.raises(SupersededError):
                await asking
            with pytest.raises(BaseExceptionGroup):
                await bench.task
        finally:
            go_on.set()
            await asyncio.gather(stuck, return_exceptions=True)
            bench.task = asyncio.create_task(asyncio.sleep(0))


def nothing(*words: Any) -> Any:
    raise AssertionError("nothing is to be opened")


async def test_a_leader_hands_over_if_it_cannot_reach_the_bus_and_not_while_it_gets_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("encamp.manager.leading.LOOK", 0.01)
    other = SimpleNamespace(host="other", trouble="")
    tenure = SimpleNamespace(seconds=0.1, standing_by=[other])
    leading = Leading(Site(), Home(tmp_path), tmp_path / "door", nothing, nothing)
    bus = PlayedBus()
    watching = asyncio.create_task(leading._until_unheard(cast(Any, tenure), cast(Any, [bus])))
    # Much is read from the store, however long that takes.
    await asyncio.wait({watching}, timeout=0.5)
    assert not watching.done()
    bus.was_tried = bus.is_up = True
    await asyncio.wait({watching}, timeout=0.5)
    assert not watching.done()
    bus.is_up = False
    error = await watching
    assert isinstance(error, HandedOverError)
    assert "other" in error.sentence
