"""Who is on the site after a manager has started."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from encamp.door.questions import AskEvents, AskHosts
from encamp.model.event import EventKind
from encamp.model.host import Presence
from encamp.model.site import Presences, Site
from tests.manager.playing import ROOT, Bench, managed, until


async def test_hosts_that_died_with_the_former_manager_are_shown_and_soon_told_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(tmp_path / "etc"))
    monkeypatch.setattr("encamp.manager.listening.HELLO_PATIENCE", 0.2)
    site = Site(presence=Presences(interval=0.5, silence=1.0))
    async with managed(tmp_path / "home", site) as bench:
        async with bench.agent("alive").joined(), bench.agent("dead").joined():
            async with asyncio.timeout(20):
                while len(await bench.manager.store.hosts()) < 2:
                    await asyncio.sleep(0.01)
            await bench.stop()
        await bench.start()
        async with bench.agent("alive").joined():
            # Answered as soon as those have been heard of who answer at once.
            alive, dead = await bench.answers(AskHosts(), ROOT)
            assert (dead.name, dead.presence) == ("dead", Presence.LOST)
            assert "since the manager started" in dead.reason
            assert (alive.name, alive.presence) == ("alive", Presence.JOINED)
            await until(lambda: not bench.manager.listener.expected)
            async with asyncio.timeout(20):
                while not (lost := await _lost(bench)):
                    await asyncio.sleep(0.01)
            assert lost == ["dead"]


async def _lost(bench: Bench) -> list[str]:
    told = await bench.answers(AskEvents(), ROOT)
    return [one.host for one in told if one.kind is EventKind.HOST_LOST]
