"""What a manager answers at its door, to whom, and of whom."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from encamp.bus.bus import Bus, Handler, Message
from encamp.bus.local import LocalHub
from encamp.bus.messages import CommandNews, Hello, News, encode
from encamp.door.client import ask_async
from encamp.door.peer import Peer
from encamp.door.questions import (
    AskCommands,
    AskStatus,
    AskTriggerLog,
    AskTriggers,
    CancelCommand,
    FollowCommands,
    IssueCommand,
    LeftOut,
    Output,
    Question,
    Status,
)
from encamp.home import Home
from encamp.manager.answering import answer
from encamp.manager.daemon import Manager, Opening
from encamp.manager.leading import Leading
from encamp.manager.store.store import Store
from encamp.model.command import CommandDefinition, CommandRecord, CommandState
from encamp.model.errors import Code, EncampError
from encamp.model.host import Presence
from encamp.model.site import MANAGER, Right, Site

SITE = Site(rights=(Right(who=("alice",), commands=("test.*",), hosts=("*",)),))
ROOT = Peer(uid=0, gid=0, pid=1, user="root", groups=())
ALICE = Peer(uid=12345, gid=12345, pid=1, user="alice", groups=())


class Bench:
    """A manager, and agents that say hello and take everything."""

    def __init__(self, path: Path) -> None:
        self.door = path / "manager.sock"
        self.hub = LocalHub()
        self.agent: Bus
        self.name = ""
        self.manager = Manager(SITE, Home(path), self.door, self.hub.participant, (), {}, {})

    @asynccontextmanager
    async def host(self, name: str) -> AsyncIterator[None]:
        async def take(message: Message) -> bytes | None:
            return None

        async with self.hub.participant(name, ("everybody",), take) as bus:
            hello = Hello(
                instance=name,
                home=name,
                version="1",
                time=time.time(),
                groups=("workers",),
                commands=(CommandDefinition(name="test.do"),),
            )
            await bus.request(MANAGER, encode(hello))
            self.agent, self.name = bus, name
            yield

    async def say(self, *news: CommandNews) -> None:
        """What the agent that came last tells of commands."""
        said = News(instance=self.name, commands=news)
        await self.agent.request(MANAGER, encode(said))

    async def left(self, name: str) -> None:
        while self.manager.core.picture.hosts[name].record.presence is Presence.JOINED:
            await asyncio.sleep(0.01)

    async def answers(self, question: Question, peer: Peer = ROOT) -> list[msgspec.Struct]:
        return [item async for item in answer(self.manager, peer, question)]

    async def issue(self, *hosts: str, peer: Peer = ROOT) -> list[CommandRecord]:
        found = await self.answers(IssueCommand(hosts=hosts, name="test.do"), peer)
        return [item for item in found if isinstance(item, CommandRecord)]


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(tmp_path / "etc"))
    made = Bench(tmp_path / "home")
    async with AsyncExitStack() as held:
        ready = asyncio.Event()
        store = await Store.open("sqlite", made.manager.home.prepare())
        await held.enter_async_context(store)
        running = asyncio.create_task(made.manager.run(store, ready.set))
        held.push_async_callback(_end, running)
        async with asyncio.timeout(30):
            await ready.wait()
        yield made


async def test_hosts_that_are_not_there_are_left_out_of_what_is_sent_to_many(
    bench: Bench,
) -> None:
    async with bench.host("node1"):
        async with bench.host("node2"):
            assert [record.host for record in await bench.issue("*")] == ["node1", "node2"]
        await bench.left("node2")
        for patterns in (("*",), ("@workers",), ("node[12]", "node1")):
            first, second = await bench.answers(IssueCommand(hosts=patterns, name="test.do"))
            assert isinstance(first, LeftOut)
            assert isinstance(second, CommandRecord)
            assert (first.host, second.host) == ("node2", "node1")
            assert first.reason.startswith("is left: ")
        # Whoever names it means it.
        for patterns in (("node2",), ("*", "node2"), ("node2*",)):
            with pytest.raises(EncampError) as refused:
                await bench.issue(*patterns)
            assert refused.value.code is Code.UNREACHABLE
            assert refused.value.transient


async def test_commands_of_one_user_are_found_among_those_of_others(bench: Bench) -> None:
    async with bench.host("node1"):
        (own,) = await bench.issue("node1", peer=ALICE)
        for _ in range(5):
            await bench.issue("node1")
        for under_way in (False, True):
            question = AskCommands(last=2, under_way=under_way)
            found = await bench.answers(question, ALICE)
            assert [record.id for record in found if isinstance(record, CommandRecord)] == [own.id]
            assert len(await bench.answers(question)) == 2


async def test_output_is_told_once_wherever_it_is_asked_from(bench: Bench) -> None:
    async with bench.host("node1"):
        (record,) = await bench.issue("node1")
        await bench.say(CommandNews(id=record.id, state=CommandState.DONE, piece=b"all of it"))
        question = FollowCommands(offsets={record.id: -(2**62)})
        async with aclosing(ask_async(bench.door, question, Output, CommandRecord)) as parts:
            output, end = [part async for part in parts]
        assert isinstance(output, Output)
        assert isinstance(end, CommandRecord)
        assert (output.offset, output.piece) == (0, b"all of it")


async def test_second_manager_is_refused_before_it_waits_for_anything(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*arguments: object) -> None:
        raise AssertionError("the store was opened")

    def open_bus(name: str, groups: Sequence[str], take: Handler, rank: int) -> Bus:
        raise AssertionError("the bus was opened")

    def begin(bus: Opening) -> Manager:
        raise AssertionError("it leads")

    monkeypatch.setattr("encamp.manager.leading.Store.open", never)
    second = Leading(SITE, bench.manager.home, bench.door, open_bus, begin)
    with pytest.raises(EncampError, match=r"answers at .* already") as refused:
        await second.run()
    assert refused.value.code is Code.WRONG_STATE


async def test_command_that_is_over_is_not_cancelled_again(bench: Bench) -> None:
    async with bench.host("node1"):
        (record,) = await bench.issue("node1")
        await bench.say(CommandNews(id=record.id, state=CommandState.DONE))
        with pytest.raises(EncampError) as caught:
            await bench.answers(CancelCommand(id=record.id))
    assert caught.value.code is Code.WRONG_STATE
    assert "test.do on node1 is done already" in caught.value.sentence


async def test_command_in_the_place_of_a_host_is_recognised(bench: Bench) -> None:
    async with bench.host("node1"):
        with pytest.raises(EncampError) as caught:
            await bench.answers(IssueCommand(hosts=("test.do",), name="node1"))
    assert caught.value.code is Code.USAGE
    assert caught.value.sentence == "'test.do' is a command, and no host."
    assert "Hosts come first" in caught.value.hint


@pytest.mark.parametrize("question", [AskTriggers(name="lonly"), AskTriggerLog(name="lonly")])
async def test_trigger_that_is_not_there_is_refused_with_a_guess(
    bench: Bench, tmp_path: Path, question: Question
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "triggers.yaml").write_text("lonely: {when: len(hosts) < 2, do: log('x')}")
    bench.manager.load_triggers()
    with pytest.raises(EncampError) as caught:
        await bench.answers(question)
    assert caught.value.code is Code.USAGE
    assert "Did you mean 'lonely'?" in caught.value.hint


async def test_status_tells_that_triggers_were_refused(bench: Bench, tmp_path: Path) -> None:
    async def refused() -> str:
        (found,) = await bench.answers(AskStatus())
        assert isinstance(found, Status)
        return found.triggers_refused

    (tmp_path / "etc").mkdir()
    file = tmp_path / "etc" / "triggers.yaml"
    file.write_text("lonely: {when: len(hostss) < 2, do: log('x')}")
    with pytest.raises(EncampError):
        bench.manager.load_triggers()
    assert "none is watched" in await refused()
    assert f"{file}:1:" in await refused()
    file.write_text("lonely: {when: len(hosts) < 2, do: log('x')}")
    bench.manager.load_triggers()
    assert await refused() == ""


async def test_status_looks_at_the_store(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(key: str) -> bytes | None:
        raise EncampError(Code.UNREACHABLE, "The store does not answer.")

    async def status() -> str:
        (found,) = await bench.answers(AskStatus())
        assert isinstance(found, Status)
        return found.store

    assert await status() == ""
    monkeypatch.setattr(bench.manager.store, "kept", gone)
    assert await status() == "The store does not answer."
