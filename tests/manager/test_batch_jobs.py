"""Jobs of batch systems, as a manager tells of them: to whom, and as far as hosts are believed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from encamp.agent.bait.records import Records
from encamp.agent.daemon import Agent
from encamp.agent.properties.finding import Plugins
from encamp.bus.bus import Message
from encamp.bus.messages import JobsWanted, Query, Report, decode_from_manager, encode
from encamp.describe.property_files import batch_properties
from encamp.door.questions import AskBatchJobs, LeftOut
from encamp.home import Home
from encamp.manager import answering_batch
from encamp.manager.answering_batch import believed
from encamp.model.batch import BatchJob
from encamp.model.batch_record import BatchRecord, Outcome
from encamp.model.errors import EncampError
from encamp.model.host import Host
from encamp.model.property import PropertyDefinition
from encamp.model.site import MANAGER
from tests.manager.playing import ALICE, PROPERTIES, ROOT, Bench, PlayedAgent, managed

BAIT = PropertyDefinition(name="bait", command="batch")


def record(key: str, user: str = "alice", came: float = 100.0, **fields: Any) -> BatchRecord:
    usual = BatchRecord(
        key=key,
        system="slurm",
        id=key.removeprefix("k"),
        uid=12345,
        user=user,
        environment="debian12",
        host="made-up",
        came=came,
    )
    return msgspec.structs.replace(usual, **fields)


class Baited(PlayedAgent):
    """An agent that jobs came to; what it says to that, the test decides."""

    def __init__(self, bench: Bench, name: str, *records: BatchRecord) -> None:
        super().__init__(name, bench.hub)
        self.hello = {"properties": (*PROPERTIES, BAIT)}
        self.records = records
        self.silent = False
        self.wanted: list[JobsWanted] = []
        self._tasks: list[asyncio.Task[Any]] = []

    async def take(self, message: Message) -> bytes | None:
        said = decode_from_manager(message.body)
        if isinstance(said, Query) and said.jobs is not None:
            self.wanted.append(said.jobs)
            if not self.silent:
                report = Report(instance=self.name, query=said.id, jobs=self.records)
                telling = self._bus.request(MANAGER, encode(report))
                self._tasks.append(asyncio.create_task(telling))
            return None
        return await super().take(message)


async def test_everybody_sees_their_own_and_administrators_all(tmp_path: Path) -> None:
    async with managed(tmp_path) as bench:
        one = Baited(bench, "node1", record("k1", came=100.0), record("k2", "bob", came=300.0))
        other = Baited(bench, "node2", record("k3", came=200.0))
        async with one.joined(), other.joined():
            await bench.settle()
            mine = await bench.answers(AskBatchJobs(), ALICE)
            assert [(found.key, found.host) for found in mine] == [("k3", "node2"), ("k1", "node1")]
            assert {found.user for found in mine} == {"alice"}
            everything = await bench.answers(AskBatchJobs(), ROOT)
            assert [found.key for found in everything] == ["k2", "k3", "k1"]
        assert [wanted.user for wanted in one.wanted] == ["alice", ""]


async def test_hosts_are_asked_for_what_is_wanted_and_only_those_with_a_bait(
    tmp_path: Path,
) -> None:
    async with managed(tmp_path) as bench:
        baited, other = Baited(bench, "node1"), Baited(bench, "node2")
        other.hello = {}
        async with baited.joined(), other.joined():
            await bench.settle()
            asked = AskBatchJobs(id="slurm:17", last=7, under_way=True)
            assert await bench.answers(asked, ALICE) == []
            assert baited.wanted == [
                JobsWanted(user="alice", id="slurm:17", last=7, under_way=True)
            ]
            assert other.wanted == []
            assert await bench.answers(AskBatchJobs(hosts=("node2",)), ALICE) == []
            assert len(baited.wanted) == 1


async def test_a_host_that_does_not_answer_is_named_and_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering_batch, "PATIENCE", 2.0)
    async with managed(tmp_path) as bench:
        one, silent = Baited(bench, "node1", record("k1")), Baited(bench, "node2")
        silent.silent = True
        async with one.joined(), silent.joined():
            await bench.settle()
            left_out, found = await bench.answers(AskBatchJobs(), ALICE)
            assert isinstance(left_out, LeftOut)
            assert left_out.host == "node2"
            assert "has not answered" in left_out.reason
            assert found.key == "k1"


async def test_so_many_are_told_of_all_hosts_together(tmp_path: Path) -> None:
    async with managed(tmp_path) as bench:
        hosts = [
            Baited(bench, f"node{n}", *(record(f"k{n}{m}", came=n + 10.0 * m) for m in (3, 2, 1)))
            for n in (1, 2)
        ]
        async with hosts[0].joined(), hosts[1].joined():
            await bench.settle()
            found = await bench.answers(AskBatchJobs(last=3), ALICE)
            assert [one.key for one in found] == ["k23", "k13", "k22"]
            for last in (0, -1, 10**9):
                with pytest.raises(EncampError):
                    await bench.answers(AskBatchJobs(last=last), ALICE)


def test_no_host_speaks_for_another_or_too_much() -> None:
    told = record(
        "k1",
        host="node9",
        reason="x" * 10_000,
        came=time.time() + 50,
        begun=float("nan"),
        ended=1e300,
        cpu_seconds=float("inf"),
        outcome=Outcome.DONE,
    )
    found = believed(told, Host(name="node1", clock_offset=50.0))
    assert found.host == "node1"
    assert len(found.reason) == 2000
    assert abs(found.came - time.time()) < 10
    assert (found.begun, found.ended, found.cpu_seconds) == (0.0, 0.0, None)


async def test_a_real_agent_tells_what_came_to_its_host(tmp_path: Path) -> None:
    home = Home(tmp_path / "agent").prepare()
    kept = Records(home, "node1")
    kept.load()
    for key, user in (("k1", "alice"), ("k2", "bob")):
        job = BatchJob(system="slurm", id=key.removeprefix("k"), uid=12345)
        kept.came(key, job, environment="mini", user=user)
    kept.over("k1", Outcome.GIVEN_BACK, reason="no room")
    read = [one for one in batch_properties() if one.name != "batch_waiting"]
    async with managed(tmp_path / "manager") as bench:
        agent = Agent(home, "node1", (), bench.hub.participant, read, Plugins())
        running = asyncio.create_task(agent.run())
        try:
            async with asyncio.timeout(60):
                await agent.joined.wait()
            await bench.settle()
            (mine,) = await bench.answers(AskBatchJobs(), ALICE)
            assert (mine.full_id, mine.outcome, mine.reason, mine.host) == (
                "slurm:1",
                Outcome.GIVEN_BACK,
                "no room",
                "node1",
            )
            assert await bench.answers(AskBatchJobs(under_way=True), ALICE) == []
            (theirs,) = await bench.answers(AskBatchJobs(under_way=True), ROOT)
            assert theirs.full_id == "slurm:2"
            facts = bench.manager.core.picture.world.things["host"]["node1"].facts
            assert (facts["bait"], facts["batch_jobs"]) == ("unknown", 1)
        finally:
            running.cancel()
            await asyncio.wait([running])
