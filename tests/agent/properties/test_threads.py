"""The threads of plug-ins: whoever hangs in one keeps nobody from getting another."""

from __future__ import annotations

import asyncio
import threading

import pytest

from encamp.agent.properties import threads
from encamp.agent.properties.threads import MOMENT, Threads
from tests.agent.properties.reading import until


async def test_call_behind_one_that_hangs_gets_a_thread_however_late_that_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tested, hanging = Threads(), threading.Event()
    assert await tested.finish(tested.begin(lambda: 1)) == 1
    await until(lambda: tested._idle == 1)
    try:
        with tested._lock:
            # The only thread takes it, and cannot say so yet.
            stuck = tested.begin(hanging.wait)
            await until(tested._calls.empty)
            behind = asyncio.create_task(tested.finish(tested.begin(lambda: 2)))
            await asyncio.sleep(3 * MOMENT)
            monkeypatch.setattr(threads, "IDLE", 0.01)
        async with asyncio.timeout(30):
            assert await behind == 2
        assert not stuck.ended
    finally:
        hanging.set()
    await until(lambda: len(tested) == 0)
