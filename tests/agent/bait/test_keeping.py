"""What keeps a bait: open while it can be, and asked by whoever a job belongs to."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from encamp.agent.bait.failing import Failing
from encamp.agent.bait.keeping import Keeping
from encamp.agent.bait.opening import Host
from encamp.agent.bait.room import host_now
from encamp.agent.properties.finding import Plugins
from encamp.agent.properties.reader import Reader
from encamp.describe.property_files import batch_properties
from encamp.door.client import ask_async
from encamp.door.questions import AskBatchJobs, AskStatus, Status
from encamp.home import Home
from encamp.machines.room import RESERVE, available_memory
from encamp.model.batch import BatchJob, BatchSettings
from encamp.model.batch_record import BatchRecord, Outcome
from encamp.model.errors import Code, EncampError
from encamp.model.size import MIB
from tests.agent.bait.pretended import MARK, Pretended

NOBODY = 65534
SETTINGS = BatchSettings(system="pretended", every=0.01, failures=2)
ROOMY = Host(memory=8192 * MIB, disk=102400 * MIB)

ASKING = """
import sys
from pathlib import Path
from encamp.door.client import ask
from encamp.door.questions import AskBatchJobs
from encamp.model.batch_record import BatchRecord
print([record.key for record in ask(Path(sys.argv[1]), AskBatchJobs(), BatchRecord)])
"""


@pytest.fixture
def home() -> Iterator[Home]:
    """Where everybody may pass, as through /run."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Home(Path(directory) / "home").prepare()


@asynccontextmanager
async def keeping(home: Home, system: Pretended, **how: Any) -> AsyncIterator[Keeping]:
    door = home.root / "agent.sock"
    async with Keeping(home, system, SETTINGS, host="node1", door=door, **how) as kept:
        yield kept


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


def job(id: str, uid: int) -> BatchJob:
    return BatchJob(system="slurm", id=id, uid=uid)


async def test_it_is_open_while_it_is_kept_and_closed_afterwards(home: Home) -> None:
    system = Pretended()
    system.reason = MARK + "what the last agent said"
    async with keeping(home, system, room=lambda: ROOMY):
        await until(lambda: not system.reason)
    assert system.reason.startswith(MARK)
    assert not (home.root / "agent.sock").exists()


async def test_environments_that_fail_close_it(home: Home) -> None:
    system = Pretended()

    def room(kept: list[Keeping]) -> Host:
        return host_now(home, kept[0].failing, lambda: 100.0)

    held: list[Keeping] = []
    async with keeping(home, system, room=lambda: room(held) if held else ROOMY) as kept:
        held.append(kept)
        kept.failing.failed("sl7", "it never answered", 1000, 100.0)
        kept.failing.failed("sl7", "it never answered", 1001, 100.0)
        await until(lambda: "environment sl7 failed 2 times" in system.reason)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_owners_are_told_of_their_own_jobs_and_root_of_all(home: Home) -> None:
    async with keeping(home, Pretended(), room=lambda: ROOMY) as kept:
        kept.records.came("mine", job("1", 0), environment="mini", user="root")
        kept.records.came("theirs", job("2", NOBODY), environment="mini", user="nobody")
        kept.records.over("theirs", Outcome.DONE)
        door = home.root / "agent.sock"
        async with (
            asyncio.timeout(60),
            aclosing(ask_async(door, AskBatchJobs(), BatchRecord)) as answer,
        ):
            assert {record.key async for record in answer} == {"mine", "theirs"}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", ASKING, str(door),
            stdout=asyncio.subprocess.PIPE, user=NOBODY, group=NOBODY, extra_groups=[],
            env={"HOME": "/", "PATH": os.environ["PATH"]},
        )  # fmt: skip
        printed, _ = await process.communicate()
        assert printed.decode().strip() == "['theirs']"


async def test_a_second_agent_of_one_host_is_refused_and_leaves_the_bait_alone(home: Home) -> None:
    system = Pretended()
    async with keeping(home, system, room=lambda: ROOMY) as kept:
        await until(lambda: kept.watch.told is not None)
        second = Keeping(home, system, SETTINGS, host="node1", door=home.root / "agent.sock")
        with pytest.raises(EncampError) as refused:
            await second.__aenter__()
        assert refused.value.code is Code.WRONG_STATE
        assert "One agent of root's is enough" in (refused.value.hint or "")
        assert system.calls == []


async def test_nothing_else_can_be_asked_there(home: Home) -> None:
    async with keeping(home, Pretended(), room=lambda: ROOMY):
        answer = ask_async(home.root / "agent.sock", AskStatus(), Status)
        with pytest.raises(EncampError) as refused:
            await anext(answer)
        assert refused.value.code is Code.USAGE


async def test_what_happens_is_read_as_properties(home: Home) -> None:
    wanted = [
        one for one in batch_properties() if one.name in ("bait", "bait_reason", "batch_jobs")
    ]
    reader = Reader(wanted, Plugins(), changed=lambda _: None, home=home)

    async def values() -> dict[str, Any]:
        read = await reader.read()
        assert {name: reading.error for name, reading in read.items() if reading.error} == {}
        return {name: reading.value for name, reading in read.items()}

    before = {"bait": "unknown", "bait_reason": "nobody has looked yet", "batch_jobs": 0}
    assert await values() == before
    system, host = Pretended(), [ROOMY]
    async with keeping(home, system, room=lambda: host[0]) as kept:
        kept.records.came("k1", job("1", 0), environment="mini", user="root")
        await until(lambda: kept.watch.told is not None)
        assert await values() == {"bait": "open", "bait_reason": "", "batch_jobs": 1}
        host[0] = Host(memory=0, disk=ROOMY.disk)
        await until(lambda: bool(system.reason))
        await until(lambda: kept.watch.told is not None and bool(kept.watch.told.reason))
        found = await values()
        assert found["bait"] == "full"
        assert "0 B of memory free" in found["bait_reason"]


def test_room_is_what_machines_are_counted_by(home: Home) -> None:
    found = host_now(home, Failing(home, SETTINGS), lambda: 0.0)
    free = available_memory() - RESERVE
    assert found.memory <= free + 2048 * MIB
    assert found.disk <= os.statvfs(home.root).f_bfree * os.statvfs(home.root).f_frsize
    assert found.machines >= 0
    assert found.failing == ()
