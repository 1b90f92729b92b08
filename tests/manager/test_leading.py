"""When a manager that leads is of no use any more, and when that only looks so."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from encamp.home import Home
from encamp.manager.leading import HandedOverError, Leading
from encamp.model.site import Site


@dataclass
class PlayedBus:
    was_tried: bool = False
    is_up: bool = False


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
