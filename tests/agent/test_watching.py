"""What is put right in the homes of others: soon again if it could only have been too early, and
rarely if that is of no use."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from encamp.agent import owned, watching
from encamp.agent.watching import LATE, SOON, MachineWatch
from encamp.home import Home

OWNER = 4711


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When what is wrong with an owner's machine was to be put right. Nothing becomes of it."""
    at: list[float] = []
    clock = [1000.0]
    monkeypatch.setattr(owned, "disagreeing", lambda home: {OWNER: frozenset({"machine"})})
    monkeypatch.setattr(watching, "recover_owner", lambda home, uid: at.append(clock[0]))
    monkeypatch.setattr(watching, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    at_work = MachineWatch(Home(Path("/nowhere")), lambda: None)
    for _ in range(600):
        at_work._recover_owners()
        for thread in at_work._at_work.values():
            thread.join()
        clock[0] += 1.0
    return at


def test_what_could_not_be_put_right_is_tried_again_soon_and_then_less_often(
    tried: list[float],
) -> None:
    pauses = [later - earlier for earlier, later in pairwise(tried)]
    assert SOON <= pauses[0] <= SOON + 1
    assert pauses == sorted(pauses)
    assert LATE <= pauses[-1] <= LATE + 1
    assert len(tried) < 20


@pytest.mark.parametrize(
    "trouble", [OSError(24, "Too many open files"), RuntimeError("can't start new thread")]
)
async def test_a_look_that_fails_is_not_the_last(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, trouble: Exception
) -> None:
    watch, looks = MachineWatch(Home(Path("/nowhere")), lambda: None), 0
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def look(*, agree: bool) -> bool:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise trouble
        loop.call_soon_threadsafe(done.set)
        return False

    monkeypatch.setattr(watch, "look", look)
    monkeypatch.setattr(watching, "LOOK", 0.01)
    running = asyncio.create_task(watch.run())
    await asyncio.wait({running, asyncio.create_task(done.wait())}, return_when="FIRST_COMPLETED")
    assert not running.done()
    running.cancel()
    assert str(trouble) in caplog.text


def test_two_who_look_at_once_are_not_in_each_others_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owned, "disagreeing", lambda home: {})
    watch = MachineWatch(Home(Path("/nowhere")), lambda: None)

    class Other(threading.Thread):
        def is_alive(self) -> bool:
            watch._at_work[len(watch._at_work)] = threading.Thread()
            return False

    watch._at_work = {OWNER: Other(), OWNER + 1: Other()}
    watch._recover_owners()
    assert watch._at_work == {}
