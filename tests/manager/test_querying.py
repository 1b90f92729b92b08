"""Hosts are asked all at once, or one after the other at a given pace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from encamp.bus.bus import Bus, Message
from encamp.bus.local import LocalHub
from encamp.bus.messages import Query, decode_from_manager
from encamp.core.picture import HostState
from encamp.manager.querying import Querier
from encamp.manager.traffic import Pace
from encamp.model.host import Host, Presence
from encamp.model.site import EVERYBODY

NAMES = [f"node{number}" for number in range(5)]


class Turns(Pace):
    """A pace that the test sets."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.waiting = 0
        self._turns = asyncio.Semaphore(0)

    async def turn(self) -> None:
        self.waiting += 1
        await self._turns.acquire()
        self.waiting -= 1

    def give(self, count: int = 1) -> None:
        for _ in range(count):
            self._turns.release()


@asynccontextmanager
async def asking(pace: Pace) -> AsyncIterator[tuple[Querier, list[tuple[str, Query]], Bus]]:
    asked: list[tuple[str, Query]] = []
    hosts = {name: HostState(Host(name=name)) for name in NAMES}
    hosts["gone"] = HostState(Host(name="gone", presence=Presence.LOST))
    async with AsyncExitStack() as held:
        hub = LocalHub()

        async def nothing(message: Message) -> bytes | None:
            return None

        bus = await held.enter_async_context(hub.participant("manager", (), nothing))
        for name in NAMES:

            async def take(message: Message, name: str = name) -> bytes | None:
                said = decode_from_manager(message.body)
                assert isinstance(said, Query)
                asked.append((name, said))
                return None

            await held.enter_async_context(hub.participant(name, (EVERYBODY,), take))
        querier = Querier(hosts, bus, pace)
        held.push_async_callback(querier.close)
        yield querier, asked, bus


async def until(asked: list[tuple[str, Query]], count: int) -> None:
    while len(asked) < count:
        await asyncio.sleep(0.001)


async def test_without_a_limit_all_hosts_are_asked_by_one_message() -> None:
    async with asking(Pace(None)) as (querier, asked, _):
        querier.ask(None)
        await until(asked, len(NAMES))
        assert sorted(name for name, _ in asked) == NAMES
        assert len({query.id for _, query in asked}) == 1
        assert asked[0][1].properties == ()


async def test_with_a_limit_hosts_are_asked_one_by_one_as_the_pace_allows() -> None:
    pace = Turns()
    async with asking(pace) as (querier, asked, _):
        querier.ask(None)
        for count in range(1, len(NAMES) + 1):
            pace.give()
            await until(asked, count)
            await asyncio.sleep(0.005)
            assert len(asked) == count
        assert [name for name, _ in asked] == NAMES


async def test_a_round_that_is_not_over_is_not_begun_again() -> None:
    pace = Turns()
    async with asking(pace) as (querier, asked, _):
        for _ in range(10):
            querier.ask(None)
            await asyncio.sleep(0.001)
        assert pace.waiting == 1
        pace.give(len(NAMES))
        await until(asked, len(NAMES))
        await asyncio.sleep(0.01)
        assert len(asked) == len(NAMES)
        querier.ask(None)
        pace.give(len(NAMES))
        await until(asked, 2 * len(NAMES))


async def test_some_hosts_can_be_asked_for_some_properties() -> None:
    async with asking(Pace(None)) as (querier, asked, _):
        querier.ask(("node2", "gone", "nowhere"), ("load1",))
        await until(asked, 1)
        await asyncio.sleep(0.01)
        assert [(name, query.properties) for name, query in asked] == [("node2", ("load1",))]


async def test_answers_are_waited_for_and_who_gives_none_is_named() -> None:
    async with asking(Pace(None)) as (querier, asked, _):
        answers = asyncio.create_task(querier.answers(["node1", "node2", "gone"], (), 0.5))
        await until(asked, 2)
        assert all(query.fresh for _, query in asked)
        querier.answered(asked[0][1].id, "node1")
        querier.answered("another query", "node2")
        assert await answers == ["node2"]
