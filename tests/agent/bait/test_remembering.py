"""It is found out what becomes of jobs, however often that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from encamp.agent.bait import remembering, settling
from encamp.agent.bait.identity import T
from encamp.agent.bait.policy import Hopeful
from encamp.agent.bait.records import Records, found
from encamp.agent.bait.remembering import Formers
from encamp.agent.bait.settling import Settling
from encamp.agent.commands.supervising import Commands
from encamp.home import Home
from encamp.model.batch import BatchJob, BatchSettings, Task
from encamp.model.batch_record import Outcome
from tests.agent.bait.pretended import Pretended


class Taking(Pretended):
    """All back."""

    def bring_back(self, job: BatchJob, task: Task, reason: str, *, hold: bool, held: bool) -> str:
        return ""


async def in_thread(work: Callable[[], T], /) -> T:
    return work()


async def test_jobs_of_a_former_agent_are_settled_though_it_fails_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(remembering, "LOOK", 0.01)
    monkeypatch.setattr(settling, "FIRST_DELAY", 0.01)
    home = Home(tmp_path / "home").prepare()
    records = Records(home, "host")
    records.load()
    for id in ("17", "18"):
        job = BatchJob(system="pretended", id=id, uid=1000)
        records.came(f"key{id}", job, environment="mini", user="alice")
    asked = Settling(records, in_thread, lambda: (Taking(), BatchSettings(system="pretended")))
    begin, failures = asked.begin_orphan, ["17", "18", "17"]

    def begin_orphan(record: Any) -> None:
        if record.id in failures:
            failures.remove(record.id)
            raise RuntimeError("can't start new thread")
        begin(record)

    monkeypatch.setattr(asked, "begin_orphan", begin_orphan)
    own = SimpleNamespace(tell=lambda told: None)
    commands = cast("Commands", SimpleNamespace(own=own))
    formers = Formers(commands, Hopeful(), records, asked)
    watching = asyncio.create_task(formers.watch())
    async with asyncio.timeout(30):
        while any(record.outcome is not Outcome.GIVEN_BACK for record in found(home)):
            await asyncio.sleep(0.01)
    assert not watching.done()
    watching.cancel()
    await asyncio.wait({watching})
    assert sum(bool(record.exc_info) for record in caplog.records) == 3
