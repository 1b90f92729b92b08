"""Commands are sent until they are taken, in order, and followed to their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from encamp.bus.bus import Message
from encamp.bus.local import LocalHub
from encamp.bus.messages import Cancel, CommandNews, Execute, decode_from_manager
from encamp.core.picture import HostState
from encamp.home import Home
from encamp.manager.dispatching import Dispatcher
from encamp.manager.store.store import Store
from encamp.manager.traffic import Pace
from encamp.model.command import CommandDefinition, CommandRecord, CommandState, Parameter
from encamp.model.errors import Code, EncampError
from encamp.model.host import Host, Presence
from encamp.model.property import ValueKind

COMMAND = CommandDefinition(
    name="test.add",
    parameters=(Parameter("number", ValueKind.INT), Parameter("text", required=False)),
)


class Played:
    """An agent that writes down what it is told, and refuses or fails as it is told to."""

    def __init__(self) -> None:
        self.told: list[Execute] = []
        self.cancelled: list[str] = []
        self.failing: list[EncampError] = []
        self.heard = asyncio.Event()

    async def take(self, message: Message) -> bytes | None:
        if self.failing:
            raise self.failing.pop(0)
        said = decode_from_manager(message.body)
        if isinstance(said, Execute):
            self.told.append(said)
        elif isinstance(said, Cancel):
            self.cancelled.append(said.id)
        self.heard.set()
        return None


class Bench:
    def __init__(self, hub: LocalHub, store: Store, dispatcher: Dispatcher) -> None:
        self.hub = hub
        self.store = store
        self.dispatcher = dispatcher
        self.agent = Played()
        self.moves: list[tuple[str, CommandState]] = []

    async def issue(self, number: int = 1) -> CommandRecord:
        [record] = await self.dispatcher.issue(["node1"], "test.add", {"number": number}, "root")
        return record

    async def until(self, record: CommandRecord, state: CommandState) -> CommandRecord:
        while True:
            now = await self.store.command(record.id)
            known = self.dispatcher.commands.records.get(record.id)
            if now.state is state and (known is None or known.state is state):
                return now
            await asyncio.sleep(0.01)


def hosts(presence: Presence = Presence.JOINED) -> dict[str, HostState]:
    record = Host(name="node1", presence=presence, reason="it fell silent", commands=(COMMAND,))
    return {"node1": HostState(record)}


@asynccontextmanager
async def dispatching(
    path: Path, known: dict[str, HostState] | None = None
) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as held:
        hub = LocalHub()
        store = await held.enter_async_context(
            await Store.open("sqlite", Home(path / "home").prepare())
        )

        async def nothing(message: Message) -> bytes | None:
            return None

        bus = await held.enter_async_context(hub.participant("manager", (), nothing))
        moves: list[tuple[str, CommandState]] = []
        dispatcher = Dispatcher(
            hosts() if known is None else known,
            store,
            bus,
            Pace(None),
            lambda record: moves.append((record.id, record.state)),
        )
        bench = Bench(hub, store, dispatcher)
        bench.moves = moves
        held.push_async_callback(dispatcher.close)
        await held.enter_async_context(hub.participant("node1", (), bench.agent.take))
        yield bench


async def test_a_command_is_written_down_sent_and_followed_to_its_end(tmp_path: Path) -> None:
    async with dispatching(tmp_path) as bench:
        record = await bench.issue(7)
        await bench.until(record, CommandState.RUNNING)
        assert [said.arguments["number"] for said in bench.agent.told] == [7]
        first = CommandNews(id=record.id, state=CommandState.RUNNING, piece=b"half ")
        assert await bench.dispatcher.take_news("node1", first) == 5
        last = CommandNews(
            id=record.id, state=CommandState.DONE, offset=5, piece=b"done", value=8, exit_code=0
        )
        assert await bench.dispatcher.take_news("node1", last) == 9
        # Told again, as an agent does that has not heard the answer.
        assert await bench.dispatcher.take_news("node1", last) == 9
        over = await bench.dispatcher.commands.end_of(record.id)
        assert (over.state, over.value, over.exit_code) == (CommandState.DONE, 8, 0)
        assert await bench.store.output(record.id, 0, 100) == b"half done"
        states = [state for _, state in bench.moves]
        assert states == [CommandState.WAITING, CommandState.RUNNING, CommandState.DONE]


async def test_a_host_gets_its_commands_in_the_order_they_were_issued(tmp_path: Path) -> None:
    async with dispatching(tmp_path) as bench:
        records = [await bench.issue(number) for number in range(30)]
        for record in records:
            await bench.until(record, CommandState.RUNNING)
        assert [said.arguments["number"] for said in bench.agent.told] == list(range(30))


async def test_a_command_is_sent_again_until_its_agent_has_taken_it(tmp_path: Path) -> None:
    async with dispatching(tmp_path) as bench:
        bench.agent.failing = [EncampError(Code.DISK_FULL, "Not now.", transient=True)] * 2
        record = await bench.issue()
        await bench.until(record, CommandState.RUNNING)
        assert {said.id for said in bench.agent.told} == {record.id}


async def test_what_an_agent_refuses_for_good_is_not_sent_again(tmp_path: Path) -> None:
    async with dispatching(tmp_path) as bench:
        bench.agent.failing = [EncampError(Code.NOT_PERMITTED, "Never.", "Ask its owner.")]
        record = await bench.issue()
        over = await bench.until(record, CommandState.REFUSED)
        assert over.reason == "Never. Ask its owner."
        after = await bench.issue()
        await bench.until(after, CommandState.RUNNING)


async def test_what_a_former_manager_left_waiting_is_sent_and_the_rest_is_not(
    tmp_path: Path,
) -> None:
    async with dispatching(tmp_path, hosts()) as bench:
        taken = await bench.issue(1)
        await bench.until(taken, CommandState.RUNNING)
        state = bench.dispatcher._hosts["node1"]
        state.record = Host(name="node1", presence=Presence.JOINED, commands=(COMMAND,))
        bench.agent.failing = [EncampError(Code.DISK_FULL, "Not now.", transient=True)] * 1000
        waiting = await bench.issue(2)
    async with dispatching(tmp_path, hosts()) as bench:
        assert {record.id for record in await bench.dispatcher.resume()} == {taken.id, waiting.id}
        await bench.dispatcher.host_joined("node1", [taken.id])
        await bench.until(waiting, CommandState.RUNNING)
        assert [said.id for said in bench.agent.told] == [waiting.id]


async def test_a_command_that_its_agent_has_lost_is_lost_but_only_after_asking_twice(
    tmp_path: Path,
) -> None:
    async with dispatching(tmp_path) as bench:
        record = await bench.issue()
        await bench.until(record, CommandState.RUNNING)
        assert await bench.dispatcher.host_joined("node1", []) is True
        assert (await bench.store.command(record.id)).state is CommandState.RUNNING
        assert await bench.dispatcher.host_joined("node1", []) is False
        while bench.agent.cancelled != [record.id]:
            await asyncio.sleep(0.01)
        never = CommandNews(id=record.id, state=CommandState.CANCELLED, ended=1.0)
        assert await bench.dispatcher.take_news("node1", never) is None
        lost = await bench.store.command(record.id)
        assert (lost.state, lost.reason) == (
            CommandState.LOST,
            "its agent knows nothing of it any more",
        )
        # Should it turn up all the same, its end is known.
        news = CommandNews(id=record.id, state=CommandState.DONE, value=1)
        await bench.dispatcher.take_news("node1", news)
        assert (await bench.store.command(record.id)).state is CommandState.DONE


async def test_an_agent_that_has_told_the_end_to_a_store_that_is_gone_tells_it_again(
    tmp_path: Path,
) -> None:
    async with dispatching(tmp_path) as bench:
        record = await bench.issue()
        await bench.until(record, CommandState.RUNNING)
        for _ in range(2):
            await bench.dispatcher.host_joined("node1", [])
        while bench.agent.cancelled != [record.id]:
            await asyncio.sleep(0.01)
        news = CommandNews(id=record.id, state=CommandState.DONE, started=1.0, ended=2.0, value=1)
        await bench.dispatcher.take_news("node1", news)
        assert (await bench.store.command(record.id)).state is CommandState.DONE


async def test_nobody_can_tell_about_the_commands_of_another_host(tmp_path: Path) -> None:
    async with dispatching(tmp_path) as bench:
        record = await bench.issue()
        await bench.until(record, CommandState.RUNNING)
        news = CommandNews(id=record.id, state=CommandState.DONE, piece=b"forged")
        assert await bench.dispatcher.take_news("node2", news) is None
        assert (
            await bench.dispatcher.take_news("node1", CommandNews(id="ffff", state=news.state))
            is None
        )
        assert (await bench.store.command(record.id)).state is CommandState.RUNNING
        assert await bench.store.output(record.id, 0, 100) == b""


async def test_output_with_a_gap_is_asked_for_again_from_where_it_ends(tmp_path: Path) -> None:
    async with dispatching(tmp_path) as bench:
        record = await bench.issue()
        await bench.until(record, CommandState.RUNNING)
        run = CommandState.RUNNING
        gap = CommandNews(id=record.id, state=run, offset=100, piece=b"late")
        assert await bench.dispatcher.take_news("node1", gap) == 0
        early = CommandNews(id=record.id, state=run, offset=0, piece=b"early")
        assert await bench.dispatcher.take_news("node1", early) == 5


async def test_a_command_can_be_cancelled_before_it_is_sent_and_while_it_runs(
    tmp_path: Path,
) -> None:
    async with dispatching(tmp_path) as bench:
        running = await bench.issue()
        running = await bench.until(running, CommandState.RUNNING)
        await bench.dispatcher.cancel(running)
        assert bench.agent.cancelled == [running.id]
        assert (await bench.dispatcher.cancel(running)).state is CommandState.RUNNING


BUSY = EncampError(Code.NO_ROOM, "Not now.", transient=True)


async def until_told(bench: Bench, record: CommandRecord) -> None:
    while record.id not in bench.agent.cancelled:
        await bench.agent.heard.wait()
        bench.agent.heard.clear()


async def test_a_command_that_is_cancelled_before_its_agent_takes_it_is_not_sent_again(
    tmp_path: Path,
) -> None:
    async with dispatching(tmp_path) as bench:
        bench.agent.failing = [BUSY]
        record = await bench.issue()
        while bench.agent.failing:
            await asyncio.sleep(0.01)
        cancelled = await bench.dispatcher.cancel(record)
        assert (cancelled.state, cancelled.to_stop) == (CommandState.WAITING, True)
        await until_told(bench, record)
        # It is over when the agent says so, and keeps nothing else from being sent meanwhile.
        after = await bench.issue()
        await bench.until(after, CommandState.RUNNING)
        assert [said.id for said in bench.agent.told] == [after.id]
        news = CommandNews(id=record.id, state=CommandState.CANCELLED, reason="not begun")
        await bench.dispatcher.take_news("node1", news)
        over = await bench.store.command(record.id)
        assert (over.state, over.to_stop) == (CommandState.CANCELLED, False)


async def test_a_command_that_is_cancelled_on_its_way_is_stopped_where_it_arrives(
    tmp_path: Path,
) -> None:
    async with dispatching(tmp_path) as bench:
        record = await bench.issue()
        taken = asyncio.create_task(bench.agent.heard.wait())
        while not bench.agent.told:
            await asyncio.sleep(0)
        await bench.dispatcher.cancel(record)
        await taken
        await until_told(bench, record)
        assert [said.id for said in bench.agent.told] == [record.id]


async def test_a_cancelled_command_is_stopped_though_its_agent_and_the_manager_were_away(
    tmp_path: Path,
) -> None:
    known = hosts()
    async with dispatching(tmp_path, known) as bench:
        bench.agent.failing = [BUSY] * 2
        record = await bench.issue()
        while len(bench.agent.failing) == 2:
            await asyncio.sleep(0.01)
        known["node1"].record = hosts(Presence.LOST)["node1"].record
        cancelled = await bench.dispatcher.cancel(record)
        assert cancelled.state is CommandState.WAITING
        assert "told to stop" in cancelled.reason
    async with dispatching(tmp_path) as bench:
        await bench.dispatcher.resume()
        await bench.dispatcher.host_joined("node1", [])
        await until_told(bench, record)
        assert bench.agent.told == []
        while bench.dispatcher._sender._sending:
            await asyncio.sleep(0.01)
        # The agent ended before it could tell: the next one is asked again.
        bench.agent.cancelled.clear()
        await bench.dispatcher.host_joined("node1", [record.id])
        await until_told(bench, record)


async def test_what_runs_on_a_host_that_is_away_is_stopped_when_it_is_back(tmp_path: Path) -> None:
    known = hosts()
    async with dispatching(tmp_path, known) as bench:
        record = await bench.issue()
        record = await bench.until(record, CommandState.RUNNING)
        known["node1"].record = hosts(Presence.LOST)["node1"].record
        cancelled = await bench.dispatcher.cancel(record)
        assert (cancelled.state, cancelled.to_stop) == (CommandState.RUNNING, True)
        assert "told to stop" in cancelled.reason
        known["node1"].record = hosts()["node1"].record
        await bench.dispatcher.host_joined("node1", [record.id])
        await until_told(bench, record)


async def test_a_command_that_was_never_sent_is_cancelled_at_once(tmp_path: Path) -> None:
    async with dispatching(tmp_path) as bench:
        bench.agent.failing = [BUSY] * 1000
        await bench.issue()
        behind = await bench.issue()
        assert (await bench.dispatcher.cancel(behind)).state is CommandState.CANCELLED
        assert bench.agent.cancelled == []


async def test_output_of_a_command_that_is_over_does_not_change(tmp_path: Path) -> None:
    async with dispatching(tmp_path) as bench:
        record = await bench.issue()
        await bench.until(record, CommandState.RUNNING)
        done = CommandNews(id=record.id, state=CommandState.DONE, piece=b"all")
        assert await bench.dispatcher.take_news("node1", done) == 3
        more = CommandNews(id=record.id, state=CommandState.DONE, offset=3, piece=b" forged")
        assert await bench.dispatcher.take_news("node1", more) is None
        assert await bench.store.output(record.id, 0, 100) == b"all"


@pytest.mark.parametrize(
    ("host", "name", "arguments", "said"),
    [
        ("node2", "test.add", {"number": 1}, "no host 'node2'"),
        ("node1", "test.ad", {"number": 1}, "no command 'test.ad'"),
        ("node1", "test.add", {}, "number"),
        ("node1", "test.add", {"number": "one"}, "number"),
        ("node1", "test.add", {"number": 1, "colour": "red"}, "colour"),
    ],
)
async def test_what_makes_no_sense_is_refused_and_nothing_is_written(
    tmp_path: Path, host: str, name: str, arguments: dict[str, object], said: str
) -> None:
    async with dispatching(tmp_path) as bench:
        with pytest.raises(EncampError) as refused:
            await bench.dispatcher.issue(["node1", host], name, arguments, "root")  # type: ignore[arg-type]
        assert said in str(refused.value)
        assert await bench.store.commands() == []
        assert bench.agent.told == []


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({}, "'number' is missing"),
        ({"number": "1", "text": "a\0b"}, "zero byte"),
        ({"number": "1", "text": "a" * 300_000}, "too large"),
    ],
)
async def test_texts_are_checked_like_other_arguments(
    tmp_path: Path, texts: dict[str, str], said: str
) -> None:
    async with dispatching(tmp_path) as bench:
        issue = bench.dispatcher.issue
        with pytest.raises(EncampError, match=said):
            await issue(["node1"], "test.add", dict(texts), "root", texts=True)
        assert await bench.store.commands() == []
        [record] = await issue(["node1"], "test.add", {"number": "7"}, "root", texts=True)
        assert record.arguments == {"number": 7, "text": None}


async def test_a_lost_host_is_not_told_anything(tmp_path: Path) -> None:
    async with dispatching(tmp_path, hosts(Presence.LOST)) as bench:
        with pytest.raises(EncampError) as refused:
            await bench.issue()
        assert refused.value.transient
        assert "it fell silent" in refused.value.sentence
