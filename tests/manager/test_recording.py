"""What is recorded of a site has bounds, whatever its hosts do."""

from __future__ import annotations

import time
from pathlib import Path

from encamp.home import Home
from encamp.manager import recording
from encamp.manager.recording import Recorder
from encamp.manager.store.store import Store
from encamp.model.event import Event, EventKind


async def test_a_host_that_flaps_does_not_fill_the_store(tmp_path: Path) -> None:
    async with await Store.open("sqlite", Home(tmp_path).prepare()) as store:
        recorder = Recorder(store)
        now = time.time() // 60 * 60
        many = recording.MOST_EVENTS + 500

        def flap(host: str, count: int, at: float) -> None:
            recorder.events(
                Event(at=at, kind=EventKind.MACHINE_GONE, sentence=f"{number} is gone.", host=host)
                for number in range(count)
            )

        flap("node1", many, now)
        flap("node2", 10, now)
        recorder.event(EventKind.HOST_JOINED, "node1 joined.", "node1")
        flap("node1", 10, now + 60)
        await recorder._write()
        sentences = [event.sentence for event in await store.events(hosts=["node1"])]
        assert len(sentences) == recording.MOST_EVENTS + 1 + 1 + 10
        assert "500 events of host node1 were left out: there were too many." in sentences
        assert "node1 joined." in sentences
        assert len(await store.events(hosts=["node2"])) == 10
