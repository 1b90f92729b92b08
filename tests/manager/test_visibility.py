"""Who is told what: administrators everything, others what is nobody's and what is theirs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import msgspec
import pytest

from encamp.bus.messages import CommandNews
from encamp.core.actions import Judged, Judgement
from encamp.door.peer import Peer
from encamp.door.questions import (
    AskEvents,
    AskHosts,
    AskTriggerLog,
    AskTriggers,
    AskWhy,
    IssueCommand,
    Question,
)
from encamp.manager.answering import answer, whole_answer
from encamp.manager.visibility import LOOKED_AT_FIRST
from encamp.model.command import CommandRecord, CommandState
from encamp.model.event import Event, EventKind
from encamp.model.host import Host
from encamp.model.machine import State
from encamp.model.request import Explanation, PartResult
from encamp.model.site import Right, Site
from encamp.model.trigger import TriggerView
from tests.manager.playing import (
    ALICE,
    BOB,
    ROOT,
    Bench,
    PlayedAgent,
    machine,
    managed,
    until,
)

SITE = Site(rights=(Right(who=("alice", "bob"), commands=("test.*",)),))
TRIGGERS = """
large: {when: host.cpus > 3, do: "webhook('http://127.0.0.1:9/hush', host.name)"}
broken: {when: machine.state == 'failed', do: log(machine.name)}
some: {when: any(m.state == 'failed' for m in machines), do: log('some are broken')}
"""


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(tmp_path / "etc"))
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "triggers.yaml").write_text(TRIGGERS)
    async with managed(tmp_path / "home", SITE) as made:
        yield made


class Followed:
    """What somebody hears who has asked to hear of what happens."""

    def __init__(self, bench: Bench, peer: Peer, question: Question) -> None:
        self.heard: list[msgspec.Struct] = []
        self._items = answer(bench.manager, peer, question)

    async def run(self) -> None:
        async with aclosing(self._items) as items:  # type: ignore[type-var]
            async for item in items:
                self.heard.append(item)


async def following(held: AsyncExitStack, followed: Followed) -> Followed:
    task = asyncio.create_task(followed.run())

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    held.push_async_callback(end)
    return followed


async def machine_of_alice(bench: Bench, agent: PlayedAgent) -> None:
    """It stands on the agent's host as m1, beside m9, which nobody has asked the manager for."""
    await bench.manager.desk.successor.go_on()
    await bench.submit(job=None)
    await agent.phase(await agent.command(), "start", "m1")
    await agent.report(machine("m1"), machine("m9"))
    await agent.done(await agent.command(), PartResult(machine="m1", standing=True), "start")


def subjects(events: list[msgspec.Struct], *kinds: EventKind) -> set[str]:
    found = [event for event in events if isinstance(event, Event) and event.kind in kinds]
    return {event.subject or event.host for event in found}


async def test_events_are_told_to_those_whose_they_are(bench: Bench) -> None:
    machines = (EventKind.MACHINE_APPEARED, EventKind.MACHINE_CHANGED, EventKind.MACHINE_GONE)
    commands = (EventKind.COMMAND_ISSUED, EventKind.COMMAND_CHANGED)
    requests = [kind for kind in EventKind if kind.name.startswith("REQUEST_")]
    async with AsyncExitStack() as held:
        live = {
            peer.user: await following(held, Followed(bench, peer, AskEvents(follow=True)))
            for peer in (ALICE, BOB, ROOT)
        }
        agent = await held.enter_async_context(bench.agent().joined())
        await bench.settle()
        await machine_of_alice(bench, agent)
        [record] = await bench.answers(IssueCommand(hosts=("node1",), name="test.do"))
        reason = "it found alice's secret"
        await agent.say(CommandNews(id=record.id, state=CommandState.FAILED, reason=reason))
        await agent.report(machine("m1", State.FAILED), machine("m9", State.FAILED))
        await agent.report()
        own = {record.id}
        everything = {*own, *(one.id for one in await _issued(bench, BOB))}
        await until(lambda: len(subjects(live["root"].heard, *machines)) == 2)
        await until(lambda: subjects(live["root"].heard, *commands) == everything)
        for peer, seen, issued, asked in (
            (ALICE, {"m1"}, own, True),
            (BOB, set(), everything - own, False),
            (ROOT, {"m1", "m9"}, everything, True),
        ):
            question = AskEvents(last=1000)
            heard = live[peer.user].heard
            # What was written down before it was told to the one reaches the others any moment.
            await until(lambda heard=heard, issued=issued: subjects(heard, *commands) >= issued)  # type: ignore[misc]
            for events in (
                await bench.answers(question, peer),
                list(await whole_answer(bench.manager, peer, question)),
                await bench.answers(AskEvents(), peer),
                heard,
            ):
                assert subjects(events, *machines) == seen, peer.user
                assert subjects(events, *commands) == issued, peer.user
                assert bool(subjects(events, *requests)) is asked, peer.user
                assert subjects(events, EventKind.HOST_JOINED) == {"node1"}
                whole = msgspec.json.encode(events).decode()
                assert ("secret" in whole) is (peer is not BOB)
        # Its owner hears of every step of it, though the request is what it was known by.
        told = [
            event.kind for event in await bench.answers(AskEvents(), ALICE) if event.subject == "m1"
        ]
        assert told == list(machines)


async def _issued(bench: Bench, peer: Peer) -> list[CommandRecord]:
    return await bench.answers(IssueCommand(hosts=("node1",), name="test.do"), peer)


async def test_ones_own_events_are_found_among_many_of_others(bench: Bench) -> None:
    async with bench.agent().joined():
        [own] = await _issued(bench, ALICE)
        for _ in range(LOOKED_AT_FIRST + 1):
            await _issued(bench, BOB)
        written = 0
        while written <= LOOKED_AT_FIRST:
            events = await bench.answers(AskEvents(), ROOT)
            written = sum(event.kind is EventKind.COMMAND_ISSUED for event in events)
        [found] = await bench.answers(AskEvents(last=1), ALICE)
        assert found.subject == own.id


async def test_what_triggers_saw_is_told_to_those_whose_it_is(bench: Bench) -> None:
    async with AsyncExitStack() as held:
        agent = await held.enter_async_context(bench.agent().joined())
        bench.manager.load_triggers()
        question = AskTriggerLog(last=100, follow=True)
        live = {
            peer.user: await following(held, Followed(bench, peer, question))
            for peer in (ALICE, BOB, ROOT)
        }
        await bench.settle()
        await machine_of_alice(bench, agent)
        await agent.report(machine("m1", State.FAILED), machine("m9", State.FAILED))
        every = {("large", "node1"), ("broken", "node1/m1"), ("broken", "node1/m9"), ("some", "")}
        await until(lambda: fired(live["root"].heard) == every)
        for peer, seen in (
            (ALICE, {("large", "node1"), ("broken", "node1/m1")}),
            (BOB, {("large", "node1")}),
            (ROOT, every),
        ):
            heard = live[peer.user].heard
            await until(lambda heard=heard, seen=seen: fired(heard) >= seen)  # type: ignore[misc]
            for entries in (await bench.answers(AskTriggerLog(last=100), peer), heard):
                assert fired(entries) == seen, peer.user
                assert ("hush" in msgspec.json.encode(entries).decode()) is (peer is ROOT)
            names = {name for name, _ in seen}
            events = await bench.answers(AskEvents(), peer)
            for kind in (EventKind.TRIGGER_FIRED, EventKind.NOTIFICATION):
                assert subjects(events, kind) == names, (peer.user, kind)
            for name in ("large", "broken", "some"):
                [why] = await bench.answers(AskWhy(id=name), peer)
                assert isinstance(why, Explanation)
                whole = msgspec.json.encode(why).decode()
                assert (Judgement.FIRED.value in " ".join(why.history)) is (name in names)
                assert ("m9" in whole) is (peer is ROOT and name == "broken"), (peer.user, name)
                assert "hush" not in whole or peer is ROOT
                [view] = await bench.answers(AskTriggers(name=name), peer)
                assert isinstance(view, TriggerView)
                assert view.expression
                if name == "broken":
                    assert bool(view.true_for) is (peer is ROOT)


def fired(entries: list[msgspec.Struct]) -> set[tuple[str, str]]:
    return {
        (entry.trigger, entry.subject)
        for entry in entries
        if isinstance(entry, Judged) and entry.judgement is Judgement.FIRED
    }


async def test_hosts_do_not_tell_what_machines_of_others_run(bench: Bench) -> None:
    async with bench.agent().joined() as agent:
        await bench.settle()
        await machine_of_alice(bench, agent)
        inside = msgspec.structs.replace(machine("m1"), command=("mysql", "--password=hush"))
        await agent.report(inside)
        for peer, seen in ((ALICE, True), (BOB, False), (ROOT, True)):
            for question in (AskHosts(), AskHosts(brief=())):
                [host] = await bench.answers(question, peer)
                assert isinstance(host, Host)
                assert [one.id for one in host.machines] == ["m1"]
                assert ("hush" in msgspec.json.encode(host).decode()) is seen, peer.user
