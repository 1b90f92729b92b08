"""An agent tells its manager what has changed, and how far its own clock can be believed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from encamp.agent.commands.stage import RUNNING, START
from encamp.agent.conversation import Conversation
from encamp.bus.bus import Message
from encamp.bus.local import LocalHub
from encamp.bus.messages import (
    Claim,
    CommandNews,
    Execute,
    FromAgent,
    Hello,
    JobsWanted,
    News,
    Query,
    Report,
    Taken,
    Welcome,
    decode_from_agent,
    encode,
)
from encamp.model.batch_record import BatchRecord
from encamp.model.command import CommandState
from encamp.model.errors import Code, EncampError
from encamp.model.machine import Machine, State
from encamp.model.property import Reading
from encamp.model.site import MANAGER
from encamp.model.size import Size

MACHINE = Machine(
    id="0" * 32,
    name="one",
    owner=0,
    host="node1",
    environment="mini",
    image="1" * 64,
    size=Size(1, 128 << 20),
    state=State.RUNNING,
    reason="",
    created=1.0,
    changed=1.0,
)


class Played:
    """A host with nothing but readings, and a manager that writes down what it hears."""

    def __init__(self) -> None:
        self.known: dict[str, Reading] = {"load1": Reading(0.5)}
        self.heard: list[FromAgent] = []
        self.refusing: list[EncampError] = []
        self.there: tuple[Machine, ...] = ()
        """Machines on the host, and"""
        self.seen: tuple[Machine, ...] = ()
        """those that it has seen there."""
        self.untold: tuple[CommandNews, ...] = ()
        self.came: tuple[BatchRecord, ...] = ()
        """Jobs of a batch system."""
        self.wanted: list[JobsWanted] = []
        self.clock = 0.0
        """Seconds that the manager's clock is ahead of ours."""

    def hello(self) -> Hello:
        return Hello(instance="one", home="here", version="1", time=time.time())

    def readings(self) -> dict[str, Reading]:
        return dict(self.known)

    def machines(self) -> tuple[Machine, ...]:
        return self.seen

    async def look(self) -> bool:
        changed = self.seen != self.there
        self.seen = self.there
        return changed

    def news(self) -> tuple[CommandNews, ...]:
        return self.untold

    def taken(self, outputs: dict[str, int], told: tuple[CommandNews, ...]) -> None:
        self.untold = ()

    def start_again(self) -> None: ...

    async def execute(self, message: Execute) -> None: ...

    async def cancel(self, command_id: str) -> None: ...

    async def claim(self, message: Claim) -> None: ...

    def release(self, claim_id: str) -> None: ...

    async def read(self, properties: tuple[str, ...]) -> dict[str, Reading]:
        return {name: Reading("fresh") for name in properties or self.known}

    async def jobs(self, wanted: JobsWanted) -> Sequence[BatchRecord]:
        self.wanted.append(wanted)
        return self.came

    async def take(self, message: Message) -> bytes | None:
        said = decode_from_agent(message.body)
        if self.refusing and not isinstance(said, Hello):
            raise self.refusing.pop(0)
        self.heard.append(said)
        if isinstance(said, Hello):
            now = time.time() + self.clock
            return encode(Welcome(manager="m", time=now, interval=2.0, silence=6.0))
        return encode(Taken(outputs={})) if isinstance(said, News) else None

    async def until(self, count: int) -> list[FromAgent]:
        while len(self.heard) < count:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        return self.heard


@asynccontextmanager
async def talking(host: Played) -> AsyncIterator[Conversation]:
    async with AsyncExitStack() as held:
        hub = LocalHub()
        await held.enter_async_context(hub.participant(MANAGER, (), host.take))
        conversation = Conversation("node1", "one", host)
        bus = await held.enter_async_context(hub.participant("node1", (), conversation.take))
        task = asyncio.create_task(conversation.run(bus))
        try:
            yield conversation
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_it_says_hello_with_everything_and_then_only_what_changes() -> None:
    host = Played()
    async with talking(host) as conversation:
        [hello] = await host.until(1)
        assert isinstance(hello, Hello)
        assert hello.readings == {"load1": Reading(0.5)}
        conversation.teller.readings({"load1": Reading(0.75)})
        report = (await host.until(2))[1]
        assert isinstance(report, Report)
        assert report.readings == {"load1": Reading(0.75)}


async def test_clocks_that_agree_are_not_spoken_of() -> None:
    host = Played()
    async with talking(host):
        heard = await host.until(1)
        assert [hello.ahead for hello in heard if isinstance(hello, Hello)] == [None]


async def test_a_clock_that_differs_is_measured_and_told() -> None:
    host = Played()
    host.clock = 100.0
    async with talking(host):
        first, second = await host.until(2)
        assert isinstance(first, Hello)
        assert isinstance(second, Hello)
        assert first.ahead is None
        assert second.ahead == pytest.approx(-100, abs=1)


async def test_what_the_manager_refuses_for_good_does_not_keep_back_the_rest() -> None:
    host = Played()
    async with talking(host) as conversation:
        await host.until(1)
        host.refusing = [EncampError(Code.PROTOCOL, "No.")]
        conversation.teller.readings({"load1": Reading(1.0)})
        while host.refusing:
            await asyncio.sleep(0.005)
        conversation.teller.readings({"load1": Reading(2.0)})
        report = (await host.until(2))[1]
        assert isinstance(report, Report)
        assert report.readings == {"load1": Reading(2.0)}


async def test_a_manager_that_does_not_know_the_agent_is_told_everything_again() -> None:
    host = Played()
    async with talking(host) as conversation:
        await host.until(1)
        host.refusing = [EncampError(Code.WRONG_STATE, "Who?", transient=True)]
        host.known["load1"] = Reading(3.0)
        conversation.teller.readings({"load1": Reading(3.0)})
        hello = (await host.until(2))[1]
        assert isinstance(hello, Hello)
        assert hello.readings == {"load1": Reading(3.0)}


async def test_what_a_command_did_to_machines_is_told_before_how_far_it_is() -> None:
    host = Played()
    async with talking(host) as conversation:
        await host.until(1)
        for machines, state, phase in (
            ((), CommandState.RUNNING, START),
            ((MACHINE,), CommandState.RUNNING, RUNNING),
            ((), CommandState.RUNNING, RUNNING),  # What it prints is not worth a look each time.
            ((MACHINE,), CommandState.DONE, RUNNING),
            ((), CommandState.FAILED, ""),
        ):
            host.there = machines
            host.untold = (CommandNews(id="c", state=state, phase=phase),)
            conversation.teller.commands()
            while host.untold:
                await asyncio.sleep(0.005)
        told = [
            said.machines if isinstance(said, Report) else said.commands[0].state
            for said in host.heard[1:]
            if isinstance(said, Report | News)
        ]
        assert told == [
            CommandState.RUNNING,
            (MACHINE,),
            CommandState.RUNNING,
            CommandState.RUNNING,
            CommandState.DONE,
            (),
            CommandState.FAILED,
        ]


async def test_a_query_is_answered_with_what_there_is() -> None:
    host = Played()
    async with talking(host) as conversation:
        await host.until(1)
        for query in (Query(id="q1", properties=("load1", "other")), Query(id="q2", fresh=True)):
            await conversation.take(Message(MANAGER, encode(query)))
        heard = [said for said in await host.until(3) if isinstance(said, Report)]
        assert {said.query: said.readings for said in heard} == {
            "q1": {"load1": Reading(0.5)},
            "q2": {"load1": Reading("fresh")},
        }


async def test_nobody_but_the_manager_has_a_say() -> None:
    host = Played()
    async with talking(host) as conversation:
        with pytest.raises(EncampError) as refused:
            await conversation.take(Message("node2", encode(Query(id="q"))))
        assert refused.value.code is Code.NOT_PERMITTED


def came(number: int, reason: str = "") -> BatchRecord:
    return BatchRecord(
        key=str(number),
        system="slurm",
        id=str(number),
        uid=1000,
        user="alice",
        environment="mini",
        host="node1",
        came=1.0,
        reason=reason,
    )


async def test_jobs_of_a_batch_system_are_told_to_who_asks_for_them() -> None:
    host = Played()
    host.came = (came(17), came(18))
    async with talking(host) as conversation:
        await host.until(1)
        wanted = JobsWanted(user="alice", last=5)
        query = encode(Query(id="q", jobs=wanted))
        await conversation.take(Message(sender=MANAGER, body=query))
        report = (await host.until(2))[1]
    assert isinstance(report, Report)
    assert (report.query, report.jobs, report.readings) == ("q", host.came, {})
    assert host.wanted == [wanted]


async def test_of_more_jobs_than_fit_the_latest_are_told() -> None:
    host = Played()
    host.came = tuple(came(number, "x" * 2000) for number in range(1000))
    async with talking(host) as conversation:
        await host.until(1)
        query = encode(Query(id="q", jobs=JobsWanted(last=1000)))
        await conversation.take(Message(sender=MANAGER, body=query))
        report = (await host.until(2))[1]
    assert isinstance(report, Report)
    assert 100 < len(report.jobs) < 1000
    assert report.jobs == host.came[: len(report.jobs)]
