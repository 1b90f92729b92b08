"""What triggers decide is done in order, once, and also if the manager is killed over it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from encamp.bus.bus import Message
from encamp.bus.local import LocalHub
from encamp.bus.messages import CommandNews, Execute, decode_from_manager
from encamp.core.actions import (
    AskProperties,
    InOrder,
    IssueCommand,
    Judged,
    Judgement,
    Notify,
    PlaceMachines,
    Way,
)
from encamp.core.picture import HostState
from encamp.home import Home
from encamp.manager.carrying_out import PLANS, Hands
from encamp.manager.dispatching import Dispatcher
from encamp.manager.notifying import Notifier
from encamp.manager.querying import Querier
from encamp.manager.recording import Recorder
from encamp.manager.store.store import Store
from encamp.manager.traffic import Pace
from encamp.model.command import CommandDefinition, CommandState, Parameter
from encamp.model.errors import Code, EncampError
from encamp.model.host import Host, Presence

COMMAND = CommandDefinition(name="test.do", parameters=(Parameter("what"),))
NODES = ("node1", "node2")


def do(what: str, *hosts: str) -> IssueCommand:
    return IssueCommand(hosts or NODES, "test.do", {"what": what}, "trigger:test")


class Bench:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.told: list[tuple[str, str, str]] = []
        """Host, what, id."""
        self.dispatcher: Dispatcher
        self.recorder: Recorder
        self.hands: Hands
        self.remembered = 0
        self.placed: list[str] = []
        """The ids of requests, as often as they were asked for."""
        self.placing = asyncio.Event()
        self.placing.set()

    async def remember(self) -> None:
        self.remembered += 1

    async def place(self, wanted: PlaceMachines, request: str) -> None:
        if wanted.environment == "unknown":
            raise EncampError(Code.UNKNOWN_ENVIRONMENT, "There is no environment 'unknown'.")
        self.placed.append(request)
        await self.placing.wait()

    async def until_told(self, count: int) -> list[tuple[str, str]]:
        while len(self.told) < count:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.03)
        return [(host, what) for host, what, _ in self.told]

    async def end(self, host: str, what: str, state: CommandState = CommandState.DONE) -> None:
        [command] = [known for at, does, known in self.told if (at, does) == (host, what)]
        await self.dispatcher.take_news(host, CommandNews(id=command, state=state))

    async def until_over(self) -> None:
        while await self.store.kept_under(PLANS):
            await asyncio.sleep(0.005)

    async def sentences(self) -> list[str]:
        await self.recorder._write()
        return [event.sentence for event in await self.store.events()]


@asynccontextmanager
async def at_work(path: Path) -> AsyncIterator[Bench]:
    """A manager's hands, with two agents that write down what they are told."""
    async with AsyncExitStack() as held:
        store = await held.enter_async_context(
            await Store.open("sqlite", Home(path / "home").prepare())
        )
        bench = Bench(store)
        hub = LocalHub()

        async def nothing(message: Message) -> bytes | None:
            return None

        bus = await held.enter_async_context(hub.participant("manager", (), nothing))
        hosts = {name: HostState(Host(name=name, commands=(COMMAND,))) for name in NODES}
        hosts["gone"] = HostState(
            Host(name="gone", presence=Presence.LOST, reason="silent", commands=(COMMAND,))
        )
        for name in NODES:

            async def take(message: Message, name: str = name) -> bytes | None:
                said = decode_from_manager(message.body)
                assert isinstance(said, Execute)
                bench.told.append((name, str(said.arguments["what"]), said.id))
                return None

            await held.enter_async_context(hub.participant(name, (), take))
        bench.recorder = Recorder(store)
        bench.dispatcher = Dispatcher(hosts, store, bus, Pace(None), lambda record: None)
        querier = Querier(hosts, bus, Pace(None))
        notifier = Notifier(bench.recorder, ())
        await bench.dispatcher.resume()
        bench.hands = Hands(
            bench.dispatcher,
            querier,
            notifier,
            bench.recorder,
            store,
            bench.remember,
            bench.place,
        )
        held.push_async_callback(bench.dispatcher.close)
        held.push_async_callback(querier.close)
        running = asyncio.create_task(bench.hands.run())
        try:
            yield bench
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_a_step_is_done_at_the_same_time_everywhere_and_the_next_waits_for_all(
    tmp_path: Path,
) -> None:
    async with at_work(tmp_path) as bench:
        steps = ((do("one", "node1"), do("one", "node2")), (do("two"),))
        bench.hands.take([InOrder("test", steps)])
        assert sorted(await bench.until_told(2)) == [("node1", "one"), ("node2", "one")]
        await bench.end("node1", "one")
        assert len(await bench.until_told(2)) == 2
        await bench.end("node2", "one")
        assert sorted((await bench.until_told(4))[2:]) == [("node1", "two"), ("node2", "two")]
        await bench.end("node1", "two")
        await bench.end("node2", "two")
        await bench.until_over()
        assert bench.remembered == 1


async def test_after_a_failure_the_rest_is_left_out_and_that_is_told(tmp_path: Path) -> None:
    async with at_work(tmp_path) as bench:
        bench.hands.take([InOrder("test", ((do("one", "node1"),), (do("two"),)))])
        await bench.until_told(1)
        await bench.end("node1", "one", CommandState.FAILED)
        await bench.until_over()
        assert len(bench.told) == 1
        assert any("leaves its last 1" in sentence for sentence in await bench.sentences())


async def test_with_errors_ignored_what_was_begun_elsewhere_is_still_waited_for(
    tmp_path: Path,
) -> None:
    async with at_work(tmp_path) as bench:
        steps = ((do("one", "gone", "node1"),), (do("two", "node1"),))
        bench.hands.take([InOrder("test", steps, ignore_errors=True)])
        assert await bench.until_told(1) == [("node1", "one")]
        await bench.end("node1", "one")
        assert await bench.until_told(2) == [("node1", "one"), ("node1", "two")]
        assert any("could not issue" in sentence for sentence in await bench.sentences())


async def test_a_manager_that_takes_over_goes_on_and_repeats_nothing(tmp_path: Path) -> None:
    said = Notify(Way.LOG, "begun", "test")
    async with at_work(tmp_path) as bench:
        steps = ((said, do("one", "node1")), (do("two", "node1"),))
        bench.hands.take([InOrder("test", steps)])
        await bench.until_told(1)
        [(_, _, command)] = bench.told
    async with at_work(tmp_path) as bench:
        news = CommandNews(id=command, state=CommandState.DONE)
        await bench.dispatcher.take_news("node1", news)
        assert await bench.until_told(1) == [("node1", "two")]
        await bench.end("node1", "two")
        await bench.until_over()
        assert (await bench.sentences()).count("begun") <= 1
    async with at_work(tmp_path) as bench:
        await asyncio.sleep(0.05)
        assert bench.told == []
        assert len(await bench.store.commands()) == 2


async def test_what_was_planned_and_never_issued_is_issued_once(tmp_path: Path) -> None:
    async with at_work(tmp_path) as bench:
        real = bench.dispatcher.issue

        async def never(*words: object, **more: object) -> None:
            await asyncio.Event().wait()

        bench.dispatcher.issue = never  # type: ignore[method-assign, assignment]
        bench.hands.take([do("one", "node1")])
        while not await bench.store.kept_under(PLANS):
            await asyncio.sleep(0.005)
        bench.dispatcher.issue = real  # type: ignore[method-assign]
    async with at_work(tmp_path) as bench:
        assert await bench.until_told(1) == [("node1", "one")]
        assert len(await bench.store.commands()) == 1


async def test_machines_are_asked_for_by_the_same_ids_after_a_restart(tmp_path: Path) -> None:
    async with at_work(tmp_path) as bench:
        bench.placing.clear()
        bench.hands.take([PlaceMachines("mini", 3, "alice", "test")])
        while not bench.placed:
            await asyncio.sleep(0.005)
        [first] = bench.placed
    async with at_work(tmp_path) as bench:
        await bench.until_over()
        assert len(set(bench.placed)) == len(bench.placed) == 3
        assert bench.placed[0] == first


async def test_machines_that_cannot_be_asked_for_are_told(tmp_path: Path) -> None:
    async with at_work(tmp_path) as bench:
        steps = ((PlaceMachines("unknown", 1, "", "test"),), (do("two", "node1"),))
        bench.hands.take([InOrder("test", steps)])
        while not any("no environment 'unknown'" in said for said in await bench.sentences()):
            await asyncio.sleep(0.005)
        await bench.until_over()
        assert bench.told == []


async def test_one_trigger_with_very_many_commands_does_not_hold_up_another(
    tmp_path: Path,
) -> None:
    async with at_work(tmp_path) as bench:
        slow = [InOrder("slow", ((do(f"slow{n}", "node1"),), (do("x"),))) for n in range(50)]
        bench.hands.take(slow)
        bench.hands.take([do("other", "node2")])
        while ("node2", "other") not in await bench.until_told(1):
            pass


async def test_a_question_goes_out_without_being_written_down(tmp_path: Path) -> None:
    async with at_work(tmp_path) as bench:
        bench.hands.take([AskProperties(None), Notify(Way.LOG, "said", "test")])
        while "said" not in await bench.sentences():
            await asyncio.sleep(0.005)
        assert await bench.store.kept_under(PLANS) == {}


async def test_trigger_that_fired_for_a_host_or_a_machine_is_an_event_of_that_host(
    tmp_path: Path,
) -> None:
    subjects = ("node1", "node2/4f00", "mini", "")
    async with at_work(tmp_path) as bench:
        for subject in subjects:
            entry = Judged(trigger="t", at=1.0, judgement=Judgement.FIRED, subject=subject)
            bench.hands.take([entry])
        await bench.recorder._write()
        hosts = [event.host for event in await bench.store.events()]
    assert hosts == ["node1", "node2", "", ""]
