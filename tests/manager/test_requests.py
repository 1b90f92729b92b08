"""Requests walk from the door to hosts and back, and nobody's path crosses another's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from encamp.bus.messages import CommandNews
from encamp.core.actions import PlaceMachines
from encamp.core.happenings import Submitted
from encamp.door.peer import Peer
from encamp.door.questions import (
    AskEnvironments,
    AskMachines,
    AskRequests,
    AskStatus,
    AskTicket,
    AskWhy,
    EndRequest,
    Exec,
    FollowRequest,
    IssueCommand,
    Move,
    MoveMachine,
    Submit,
)
from encamp.manager import ticketing
from encamp.manager.answering import answer
from encamp.manager.requests import IN_ONE_GO, known_by
from encamp.meeting import tickets
from encamp.model.command import CommandState
from encamp.model.environment import DescriptionFile, Environment
from encamp.model.errors import Code, EncampError
from encamp.model.event import EventKind
from encamp.model.job import Command, Copy, Job
from encamp.model.machine import State
from encamp.model.policy import Policy
from encamp.model.request import (
    Cause,
    Explanation,
    PartResult,
    Request,
    RequestRecord,
    RequestState,
    Together,
)
from encamp.model.site import Site
from encamp.model.size import MIB, Size
from tests.manager.playing import (
    ALICE,
    BOB,
    MEETING,
    ROOT,
    Bench,
    machine,
    managed,
    request,
    until,
)


def cancelled(command: str) -> CommandNews:
    return CommandNews(id=command, state=CommandState.CANCELLED, reason="its claim has expired")


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(tmp_path / "etc"))
    async with managed(tmp_path / "home") as made:
        yield made


async def test_a_job_goes_to_a_host_and_its_end_comes_back(bench: Bench) -> None:
    async with bench.agent().joined() as agent:
        await bench.settle()
        record = await bench.submit()
        asked = record.request
        assert (asked.owner, asked.groups, asked.machine.owner.name) == (
            "alice",
            ("staff",),
            "alice",
        )
        assert asked.size.memory == asked.size.memory // MIB * MIB > 0
        assert asked.submitted > 0
        assert asked.job is not None
        assert asked.job.machine == asked.machine
        command = await agent.command()
        assert command == f"{asked.id}.0.1"
        assert agent.claims == {}
        told = agent.told[command]
        assert (told.name, told.issuer, told.arguments["number"]) == ("request.run", "alice", 0)
        given = told.arguments["request"]
        assert isinstance(given, dict)
        assert given["id"] == asked.id
        await agent.phase(command, "image")
        assert (await bench.record(record)).reason.cause is Cause.IMAGE
        await agent.phase(command, "start", "m1")
        assert (await bench.record(record)).reason.cause is Cause.START
        await agent.phase(command, "running", "m1")
        running = await bench.until(record, RequestState.RUNNING)
        assert running.parts[0].machine == "m1"
        await agent.done(command, PartResult(machine="m1", exit_code=3, began=True))
        done = await bench.until(record, RequestState.DONE)
        assert done.exit_code == 3
        assert done.ended >= done.started > 0
    kinds = [event.kind for event in await bench.manager.store.events()]
    assert [kind for kind in kinds if kind.name.startswith("REQUEST")] == [
        EventKind.REQUEST_SUBMITTED,
        EventKind.REQUEST_STARTING,
        EventKind.REQUEST_RUNNING,
        EventKind.REQUEST_OVER,
    ]


async def test_what_hosts_say_beyond_exit_codes_is_in_the_record(bench: Bench) -> None:
    async with bench.agent().joined() as agent:
        await bench.settle()
        record = await bench.submit(count=2)
        for number, said in enumerate((("Its memory ran out.", "Not copied: a."), ("No space.",))):
            result = PartResult(machine="m1", exit_code=137, began=True, problems=said)
            await agent.done(await agent.command(number), result)
        done = await bench.until(record, RequestState.DONE)
        assert done.reason.sentence == "Its memory ran out. Not copied: a. No space."
        [why] = await bench.answers(AskWhy(id=record.request.id))
        assert why.reason.sentence == done.reason.sentence
        assert why.history[-1].endswith("it ended: done with exit code 137")


async def test_a_host_that_refuses_is_passed_over_and_the_others_are_let_go(bench: Bench) -> None:
    async with bench.agent("node1").joined() as first, bench.agent("node2").joined() as second:
        second.refusing = EncampError(Code.NO_ROOM, "Node2 is full.")
        await bench.settle()
        record = await bench.submit(count=2, together=Together.APART)
        await until(lambda: f"{record.request.id}.0.1" in first.released)
        waiting = await bench.until(record, RequestState.WAITING)
        assert waiting.parts == ()
        assert first.told == second.told == {}


async def test_what_fails_before_it_began_is_tried_again_and_what_began_is_not(
    bench: Bench,
) -> None:
    async with bench.agent("node1").joined() as first, bench.agent("node2").joined() as second:
        await bench.settle()
        record = await bench.submit()
        await until(lambda: first.told or second.told)
        agent, other = (first, second) if first.told else (second, first)
        failure = PartResult(failure="The image is damaged.", environment=True)
        await agent.done(await agent.command(), failure, "image")
        again = await other.command()
        assert again == f"{record.request.id}.0.2"
        late = PartResult(failure="The machine died.", began=True)
        await other.done(again, late)
        failed = await bench.until(record, RequestState.FAILED)
        assert "The machine died." in failed.reason.sentence
        assert len(first.told) + len(second.told) == 2


async def test_a_command_whose_claim_has_lapsed_goes_back_to_the_queue(tmp_path: Path) -> None:
    site = Site(placement=Policy(pause=0.05))
    async with managed(tmp_path, site) as bench, bench.agent().joined() as agent:
        agent.lapsed = True
        await bench.settle()
        record = await bench.submit()
        second = f"{record.request.id}.0.2"
        await until(lambda: second in agent.executions)
        assert agent.told == {}


async def test_a_request_is_ended_wherever_it_is(bench: Bench) -> None:
    waiting = await bench.submit(count=1)
    [ended] = await bench.answers(EndRequest(id=waiting.request.id[:10]))
    assert ended.state is RequestState.CANCELLED
    assert ended == await bench.manager.store.request(waiting.request.id)
    async with bench.agent().joined() as agent:
        await bench.settle()
        record = await bench.submit()
        command = await agent.command()
        await agent.phase(command, "running", "m1")
        await bench.until(record, RequestState.RUNNING)
        [wanted] = await bench.answers(EndRequest(id=record.request.id))
        assert wanted.to_stop
        await until(lambda: command in agent.cancelled)
        await agent.say(cancelled(command))
        await bench.until(record, RequestState.CANCELLED)
    with pytest.raises(EncampError, match="nothing to cancel") as caught:
        await bench.answers(EndRequest(id=record.request.id))
    assert caught.value.code is Code.WRONG_STATE


async def test_a_machine_that_stands_is_removed_when_its_request_is_ended(bench: Bench) -> None:
    async with bench.agent().joined() as agent:
        await bench.settle()
        record = await bench.stand(agent)
        await bench.answers(EndRequest(id=record.request.id))
        removal = agent.told[await agent.command(1)]
        assert (removal.name, removal.arguments["machine"]) == ("machine.remove", "m1")
        assert removal.arguments["force"] is True
        await agent.done(removal.id, PartResult())
        await agent.report()
        ended = await bench.until(record, RequestState.CANCELLED)
        assert "wanted it to end" in ended.reason.sentence


async def test_a_machine_that_is_gone_before_its_removal_is_over_is_removed_once(
    bench: Bench,
) -> None:
    async with bench.agent().joined() as agent:
        await bench.settle()
        record = await bench.stand(agent)
        await bench.answers(EndRequest(id=record.request.id))
        removal = await agent.command(1)
        await agent.report()
        await bench.until(record, RequestState.CANCELLED)
        await agent.done(removal, PartResult())
        # Whatever else were to be sent would come before this.
        await bench.answers(IssueCommand(hosts=("node1",), name="test.do"), ROOT)
        await until(lambda: len(agent.told) > 2)
        assert [told.name for told in agent.told.values()][1:] == ["machine.remove", "test.do"]


async def test_a_host_that_does_not_answer_holds_up_nobody_else(bench: Bench) -> None:
    async with bench.agent("node1").joined() as first, bench.agent("node2").joined() as second:
        first.answering.clear()
        await bench.settle()
        away = [await bench.submit(requirements="host.name == 'node1'") for _ in range(2)]
        here = await bench.submit(requirements="host.name == 'node2'")
        assert await second.command() == f"{here.request.id}.0.1"
        states = {(await bench.record(record)).state for record in away}
        assert states == {RequestState.CLAIMING}
        first.answering.set()
        await first.command(1)


async def test_nobody_sees_or_ends_what_belongs_to_others(bench: Bench) -> None:
    record = await bench.submit(label="training")
    short = record.request.id[:8]
    for question in (
        AskRequests(id=short),
        AskRequests(id="training"),
        FollowRequest(id=short),
        EndRequest(id=short),
        AskTicket(request=short),
        AskWhy(id=short),
    ):
        with pytest.raises(EncampError) as caught:
            await bench.answers(question, BOB)
        assert caught.value.code is Code.USAGE
    assert await bench.answers(AskRequests(), BOB) == []
    assert await bench.answers(AskRequests(under_way=True), BOB) == []
    for peer in (ALICE, ROOT):
        for asked in (AskRequests(id="training"), AskRequests(), AskRequests(under_way=True)):
            [found] = await bench.answers(asked, peer)
            assert found.request.id == record.request.id


async def test_whoever_follows_is_told_every_change_and_the_end(bench: Bench) -> None:
    async with bench.agent().joined() as agent:
        record = await bench.submit()
        states: list[RequestState] = []
        asked = FollowRequest(id=record.request.id)
        async with asyncio.timeout(20):
            async for change in answer(bench.manager, ALICE, asked):
                assert isinstance(change, RequestRecord)
                if change.state not in states:
                    states.append(change.state)
                if change.state is RequestState.WAITING:
                    await bench.settle()
                if change.state is RequestState.STARTING and not change.parts[0].machine:
                    await agent.phase(await agent.command(), "running", "m1")
                if change.state is RequestState.RUNNING:
                    await agent.done(await agent.command(), PartResult(exit_code=0, began=True))
        assert states[0] is RequestState.WAITING
        assert states[-2:] == [RequestState.RUNNING, RequestState.DONE]
        assert (await bench.manager.store.request(record.request.id)).state is RequestState.DONE


async def test_a_ticket_leads_to_the_host_and_is_recognised_there(bench: Bench) -> None:
    async with bench.agent().joined() as agent:
        record = await bench.submit()
        with pytest.raises(EncampError, match="not been started") as early:
            await bench.answers(AskTicket(request=record.request.id))
        assert early.value.transient
        await bench.settle()
        command = await agent.command()
        [ticket] = await bench.answers(AskTicket(request=record.request.id))
        assert (ticket.host, ticket.id, ticket.meeting) == ("node1", command, MEETING)
        assert tickets.matches(str(agent.told[command].arguments["ticket"]), ticket.secret)
        with pytest.raises(EncampError, match="no machine number 1"):
            await bench.answers(AskTicket(request=record.request.id, number=1))


async def test_a_label_of_somebody_else_is_not_what_a_key_stands_for(bench: Bench) -> None:
    async with bench.agent().joined():
        await bench.settle()
        guessed = known_by("alice", "nightly")
        taken = await bench.submit(BOB, label=guessed)
        [record] = await bench.answers(Submit(request=request(), key="nightly"))
        assert record.request.id == guessed
        assert (record.request.owner, taken.request.owner) == ("alice", "bob")


async def test_an_administrators_own_label_is_what_she_means(bench: Bench) -> None:
    own = await bench.submit(ROOT, label="nightly")
    others = await bench.submit(BOB, label="nightly")
    [found] = await bench.answers(AskRequests(id="nightly"), ROOT)
    assert found.request.id == own.request.id
    [ended] = await bench.answers(EndRequest(id="nightly"), ROOT)
    assert ended.request.id == own.request.id
    assert (await bench.record(others)).state is RequestState.WAITING
    [found] = await bench.answers(AskRequests(id=others.request.id), ROOT)
    assert found.request.owner == "bob"
    [why] = await bench.answers(AskWhy(id="nightly"), ROOT)
    assert why.id == own.request.id


async def test_a_label_of_two_users_is_not_what_an_administrator_means(bench: Bench) -> None:
    of = {peer.user: await bench.submit(peer, label="nightly") for peer in (ALICE, BOB)}
    for question in (AskRequests(id="nightly"), EndRequest(id="nightly"), AskWhy(id="nightly")):
        with pytest.raises(EncampError, match="Several users") as refused:
            await bench.answers(question, ROOT)
        for user, record in of.items():
            assert f"{record.request.id} of {user}" in refused.value.sentence
            assert (await bench.record(record)).state is RequestState.WAITING


async def test_only_its_owner_runs_commands_in_a_machine(bench: Bench) -> None:
    async with bench.agent().joined() as agent:
        await bench.settle()
        await bench.submit(job=None)
        command = await agent.command()
        await agent.done(command, PartResult(machine="m1", standing=True), "start")
        await agent.report(machine("m1"), machine("m2"))
        await until(lambda: bench.manager.desk.requests.standing.made_for("node1", "m1"))
        wanted = Exec(command=Command(("hostname",)))
        [ticket] = await bench.answers(AskTicket(machine="mini-m1", exec=wanted))
        told = agent.told[await agent.command(1)]
        assert (told.id, told.name, told.arguments["machine"]) == (ticket.id, "machine.exec", "m1")
        assert told.arguments["owner"] == "alice"
        assert tickets.matches(str(told.arguments["ticket"]), ticket.secret)
        for peer, name in ((BOB, "m1"), (ALICE, "m2"), (ALICE, "m")):
            question = AskTicket(machine=name, exec=wanted)
            if (peer, name) == (ALICE, "m"):
                await bench.answers(question, peer)  # Hers is the only one that she can mean.
                continue
            with pytest.raises(EncampError, match="no machine") as caught:
                await bench.answers(question, peer)
            assert caught.value.code is Code.UNKNOWN_MACHINE
        with pytest.raises(EncampError, match="Several machines"):
            await bench.answers(AskTicket(machine="m", exec=wanted), ROOT)


async def test_owners_stop_remove_and_cancel_their_machines_by_name(bench: Bench) -> None:
    async with bench.agent().joined() as agent:
        await bench.settle()
        record = await bench.submit(job=None)
        command = await agent.command()
        await agent.done(command, PartResult(machine="m1", standing=True), "start")
        await agent.report(machine("m1"), machine("m2"))
        await until(lambda: bench.manager.desk.requests.standing.made_for("node1", "m1"))
        [mine] = await bench.answers(AskMachines(mine=True))
        assert mine.machine.id == "m1"
        assert await bench.answers(AskMachines(mine=True), BOB) == []
        [issued] = await bench.answers(MoveMachine(machine="mini-m1", move=Move.REMOVE, force=True))
        told = agent.told[await agent.command(1)]
        assert (told.id, told.name, told.issuer) == (issued.id, "machine.remove", "alice")
        assert told.arguments == {"machine": "m1", "owner": "alice", "force": True}
        for peer, name in ((BOB, "mini-m1"), (ALICE, "mini-m2")):
            with pytest.raises(EncampError, match="no machine"):
                await bench.answers(MoveMachine(machine=name, move=Move.KILL), peer)
            with pytest.raises(EncampError, match="no job"):
                await bench.answers(EndRequest(id=name), peer)
        [ended] = await bench.answers(EndRequest(id="mini-m1"))
        assert ended.request.id == record.request.id


async def test_a_machines_name_is_not_taken_for_the_beginning_of_a_jobs_id(bench: Bench) -> None:
    async with bench.agent().joined() as agent:
        await bench.settle()
        stands = await bench.stand(agent)
        waits = await bench.submit(requirements="host.cpus > 99")
        named = msgspec.structs.replace(machine("m1"), name=waits.request.id[:2])
        await agent.report(named)
        [why] = await bench.answers(AskWhy(id=named.name))
        assert (why.kind, why.id) == ("machine", "m1")
        [ended] = await bench.answers(EndRequest(id=named.name))
        assert ended.request.id == stands.request.id
        assert (await bench.record(waits)).state is RequestState.WAITING


async def test_a_machines_name_that_is_also_a_jobs_label_is_told_with_both(bench: Bench) -> None:
    async with bench.agent().joined() as agent:
        await bench.settle()
        stands = await bench.stand(agent)
        waits = await bench.submit(label="mini-m1", requirements="host.cpus > 99")
        for question in (EndRequest(id="mini-m1"), AskWhy(id="mini-m1")):
            with pytest.raises(EncampError, match="Write the id") as refused:
                await bench.answers(question)
            assert waits.request.id in refused.value.sentence
            assert stands.request.id in refused.value.sentence
        assert (await bench.record(waits)).state is RequestState.WAITING


async def test_of_a_machine_that_has_ended_the_record_is_its_owners_to_remove(bench: Bench) -> None:
    async with bench.agent().joined() as agent:
        await bench.settle()
        record = await bench.submit(job=None)
        command = await agent.command()
        await agent.done(command, PartResult(machine="m1", standing=True), "start")
        await agent.report(machine("m1"))
        await agent.report(machine("m1", State.STOPPED), machine("m2", State.STOPPED))
        await bench.until(record, RequestState.DONE)
        [mine] = await bench.answers(AskMachines(mine=True))
        assert (mine.machine.id, mine.machine.state) == ("m1", State.STOPPED)
        await bench.answers(MoveMachine(machine="mini-m1", move=Move.REMOVE))
        assert agent.told[await agent.command(1)].arguments["owner"] == "alice"
        for peer, name in ((BOB, "mini-m1"), (ALICE, "mini-m2")):
            with pytest.raises(EncampError, match="no machine"):
                await bench.answers(MoveMachine(machine=name, move=Move.REMOVE), peer)


async def test_what_a_job_was_to_keep_is_its_owners_when_it_is_over(bench: Bench) -> None:
    async with bench.agent().joined() as node:
        record = await bench.submit()
        command = await node.command()
        await node.done(command, PartResult(machine="m1", exit_code=0, began=True))
        await bench.until(record, RequestState.DONE)
        await node.report(machine("m1", State.PAUSED))
        [mine] = await bench.answers(AskMachines(mine=True))
        assert mine.machine.id == "m1"
        assert await bench.answers(AskMachines(mine=True), BOB) == []
        await bench.answers(MoveMachine(machine="mini-m1", move=Move.REMOVE))
        with pytest.raises(EncampError, match="no machine 'm1'"):
            await bench.answers(MoveMachine(machine="m1", move=Move.REMOVE), BOB)


async def test_a_machine_is_found_as_soon_as_it_has_been_made(bench: Bench) -> None:
    wanted = Exec(command=Command(("hostname",)))
    async with bench.agent().joined() as agent:
        await bench.settle()
        await bench.submit(job=None)
        command = await agent.command()
        await agent.done(command, PartResult(machine="m1", standing=True), "start")
        await until(lambda: bench.manager.desk.requests.standing.made_for("node1", "m1"))
        with pytest.raises(EncampError, match="no machine"):
            await bench.answers(AskTicket(machine="else", exec=wanted))
        asking = asyncio.create_task(bench.answers(AskTicket(machine="mini-m1", exec=wanted)))
        await asyncio.sleep(0)
        assert not asking.done()
        await agent.report(machine("m1"))
        [ticket] = await asking
        assert ticket.host == "node1"


async def test_a_machine_is_reached_as_soon_as_its_host_is_back(bench: Bench) -> None:
    question = AskTicket(machine="m1", exec=Exec(command=Command(("hostname",))))
    async with bench.agent().joined() as agent:
        await bench.settle()
        await bench.stand(agent)
    async with asyncio.TaskGroup() as asking:
        answer = asking.create_task(bench.answers(question))
        await asyncio.sleep(2 * ticketing.LOOK)
        assert not answer.done()
        agent.hello = {"machines": (machine("m1"),)}
        async with agent.joined():
            [ticket] = await answer
    assert ticket.host == "node1"


async def test_of_a_machine_whose_host_is_away_that_is_said(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticketing, "TELLING", 0.0)
    async with bench.agent().joined() as agent:
        await bench.settle()
        record = await bench.stand(agent)
    for question in (
        AskTicket(machine="mini-m1", exec=Exec(command=Command(("hostname",)))),
        MoveMachine(machine="mini-m1", move=Move.KILL),
    ):
        with pytest.raises(EncampError, match=r"Host node1, where it is, is not joined.*goodbye"):
            await bench.answers(question)
        with pytest.raises(EncampError, match="no machine"):
            await bench.answers(question, BOB)
    [ended] = await bench.answers(EndRequest(id="mini-m1"))
    assert ended.request.id == record.request.id


async def test_a_host_that_lies_about_its_machines_gives_nobody_those_of_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticketing, "TELLING", 0.0)
    wanted = Exec(command=Command(("hostname",)))
    standing = bench.manager.desk.requests.standing
    async with bench.agent("node1").joined() as honest:
        await bench.settle()
        await bench.submit(job=None)
        command = await honest.command()
        await honest.done(command, PartResult(machine="m1", standing=True), "start")
        await honest.report(machine("m1"))
        await until(lambda: standing.made_for("node1", "m1"))
        async with bench.agent("node2").joined() as liar:
            await bench.submit(BOB, job=None, requirements="host.name == 'node2'")
            command = await liar.command()
            # It says that the machine of somebody else, elsewhere, is what it made.
            await liar.done(command, PartResult(machine="m1", standing=True), "start")
            await until(lambda: standing.made_for("node2", "m1"))
            with pytest.raises(EncampError, match="no machine"):
                await bench.answers(AskTicket(machine="m1", exec=wanted), BOB)
            await liar.report(machine("m1"))
            [hers] = await bench.answers(AskTicket(machine="m1", exec=wanted))
            [his] = await bench.answers(AskTicket(machine="m1", exec=wanted), BOB)
            assert (hers.host, his.host) == ("node1", "node2")


async def test_what_the_manager_issues_for_requests_is_not_for_others_to_issue(
    bench: Bench,
) -> None:
    async with bench.agent().joined():
        with pytest.raises(EncampError, match="for the manager to issue") as caught:
            await bench.answers(IssueCommand(hosts=("node1",), name="request.run"), ROOT)
        assert "encamp run" in caught.value.hint


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"environment": "minu"}, "no environment 'minu'"),
        ({"count": 0}, "'count' is 0"),
        ({"count": 10**9}, "'count' is 1000000000"),
        ({"priority": 10**12}, "'priority'"),
        ({"retries": -1}, "'retries'"),
        ({"requirements": "x" * 20_000}, "'requirements' has 20,000 characters"),
        ({"rank": "x" * 20_000}, "'rank' has 20,000 characters"),
        ({"label": "x" * 200}, "is no label"),
        ({"label": "a\nb"}, "is no label"),
        ({"near": ("x",) * 1000}, "More than 100 labels"),
        ({"job": Job(request().machine, Command(()))}, "nothing to run"),
        ({"job": Job(request().machine, Command(("x" * 10**5,) * 5))}, "may have 400,000"),
        ({"job": Job(request().machine, Command(("x" * 132_000,)))}, "takes 131,071"),
        ({"job": Job(request().machine, Command(("",)))}, "nothing to run"),
        ({"job": Job(request().machine, Command(("sh", "a\0b")))}, "Argument 1 of the command has"),
        (
            {"job": Job(request().machine, Command(("sh",), variables=(("A", "a\0"),)))},
            "Variable 'A' has a zero byte in it, at character 4",
        ),
        (
            {"job": Job(request().machine, Command(("sh",), (("A=B", ""),)))},
            "cannot name a variabl",
        ),
        (
            {"job": Job(request().machine, Command(("sh",), (("", "x"),)))},
            "'' cannot name a variabl",
        ),
        ({"job": Job(request().machine, Command(("sh",), workdir="/a\0"))}, "zero byte"),
        ({"job": Job(request().machine, Command(("sh",), workdir="here"))}, "not an absolute path"),
        (
            {"job": Job(request().machine, Command(("sh",)), (Copy("a\0"),))},
            "name of a file to copy",
        ),
        ({"machine": msgspec.structs.replace(request().machine, network="x")}, "no network 'x'"),
        ({"machine": msgspec.structs.replace(request().machine, image="a\0")}, "image's name"),
        ({"job": Job(request().machine, Command(("true",)), timeout=float("nan"))}, "time limit"),
        ({"job": Job(request().machine, Command(("\ud800",)))}, "no text"),
        ({"requirements": "'\ud800' == ''"}, "no text"),
        ({"near": ("",)}, "is empty"),
        ({"requirements": "host.memroy_total > 1"}, "memroy_total"),
        ({"requirements": "host.name =="}, "requirements"),
    ],
)
async def test_nonsense_is_refused_before_it_is_queued(
    bench: Bench, fields: dict[str, Any], said: str
) -> None:
    async with bench.agent().joined():
        await bench.settle()
        with pytest.raises(EncampError) as caught:
            await bench.submit(**fields)
        error = caught.value
        assert said in f"{error.sentence} {error.hint} {error.detail}"
        assert await bench.manager.store.requests() == []


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (Exec(command=Command(())), "nothing to run"),
        (Exec(command=Command(("sh", "\0"))), "zero byte"),
        (Exec(command=Command(("sh",)), timeout=float("inf")), "time limit of inf seconds"),
        (Exec(command=Command(("sh",)), outputs=(Copy("a", "b\0"),)), "zero byte"),
    ],
)
async def test_nonsense_is_not_run_in_a_machine(bench: Bench, wanted: Exec, said: str) -> None:
    with pytest.raises(EncampError, match=said) as caught:
        await bench.answers(AskTicket(machine="m1", exec=wanted))
    assert caught.value.code is Code.USAGE


async def test_the_queue_of_one_owner_is_bounded(tmp_path: Path) -> None:
    site = Site(placement=Policy(queued=3))
    async with managed(tmp_path, site) as bench:
        *_, last = [await bench.submit() for _ in range(3)]
        with pytest.raises(EncampError, match="may have 3") as caught:
            await bench.submit()
        assert caught.value.transient
        await bench.submit(BOB)
        await bench.answers(EndRequest(id=last.request.id))
        await bench.submit()
        [status] = await bench.answers(AskStatus())
        assert status.requests == {"waiting": 4}


async def test_who_may_ask_is_said_by_the_site(tmp_path: Path) -> None:
    async with managed(tmp_path, Site(submit=("@staff",))) as bench:
        await bench.submit(ALICE)
        await bench.submit(ROOT)
        with pytest.raises(EncampError, match="bob may not ask for machines") as caught:
            await bench.submit(BOB)
        assert caught.value.code is Code.NOT_PERMITTED


async def test_an_environment_is_for_those_whom_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    etc = tmp_path / "etc"
    etc.mkdir()
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(etc))
    (etc / "environments.yaml").write_text("ours: {extends: mini, users: ['@staff'], classes: x}")
    async with managed(tmp_path / "home") as bench:
        record = await bench.submit(ALICE, environment="ours")
        assert record.request.classes == ("x",)
        await bench.submit(ROOT, environment="ours")
        with pytest.raises(EncampError, match="not for bob") as caught:
            await bench.submit(BOB, environment="ours")
        assert caught.value.code is Code.NOT_PERMITTED


OWN = """
tools:
  extends: mini
  classes: [free]
  context: {variables: {GREETING: hello}}
"""


@pytest.fixture
async def describing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    """A site that has an environment for its staff."""
    etc = tmp_path / "etc"
    etc.mkdir()
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(etc))
    (etc / "environments.yaml").write_text(
        "ours: {extends: mini, users: ['@staff'], context: {variables: {SECRET: x}}}"
    )
    async with managed(tmp_path / "home") as made:
        yield made


def brings(name: str, text: str = OWN) -> Submit:
    file = DescriptionFile("/home/bob/environments.yaml", "/home/bob", text)
    # What is the manager's to say is said as if it were the asker's.
    own = Environment(name=name, image="x", size=Size(1, 1), qemu=("-device", "x"))
    asked = request(environment=name, described=own, classes=("free",))
    return Submit(request=asked, descriptions=(file,))


async def test_an_environment_that_its_owner_brings_along_is_read_by_the_manager(
    describing: Bench,
) -> None:
    async with describing.agent().joined() as agent:
        [record] = await describing.answers(brings("tools"), BOB)
        assert isinstance(record, RequestRecord)
        asked = record.request
        assert (asked.own, asked.classes, asked.size.memory) == (True, ("own",), 128 * MIB)
        assert asked.described is not None
        assert asked.described.context.variables == {"GREETING": "hello"}
        assert asked.described.qemu == ()
        told = agent.told[await agent.command()].arguments["request"]
        assert msgspec.convert(told, Request).described == asked.described


@pytest.mark.parametrize(
    ("described", "code", "said"),
    [
        ("mine: {extends: mini, qemu: [-device, x]}", Code.CONFIGURATION, "'qemu' may only be"),
        ("mine: {extends: mini, enrol: slurm}", Code.CONFIGURATION, "'enrol' may only be"),
        ("mine: {extends: ours}", Code.CONFIGURATION, "no environment 'ours'"),
        (
            "mine: {extends: mini, context: {variables: {X: '${ours.context.variables.SECRET}'}}}",
            Code.CONFIGURATION,
            "'ours' is neither an attribute nor an environment",
        ),
        ("ours: {extends: mini}", Code.NOT_PERMITTED, "not for bob"),
        ("mini: {image: x}", Code.USAGE, "The site describes an environment 'mini'"),
        ("mine: {extends: mini, memory: no}", Code.CONFIGURATION, "/home/bob/environments.yaml:1"),
        ("mine: {extends: mini, abstract: true}", Code.UNKNOWN_ENVIRONMENT, "is abstract"),
        ("other: {extends: mini}", Code.UNKNOWN_ENVIRONMENT, "no environment 'mine'"),
    ],
)
async def test_what_somebody_describes_gives_no_rights(
    describing: Bench, described: str, code: Code, said: str
) -> None:
    name = described.split(":")[0].replace("other", "mine")
    with pytest.raises(EncampError) as caught:
        await describing.answers(brings(name, described), BOB)
    assert caught.value.code is code
    assert said in f"{caught.value} {caught.value.detail}"


async def test_what_only_the_managers_files_describe_goes_to_the_host_with_the_request(
    describing: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "environments.yaml"
    here.write_text("work: {extends: mini, classes: [x]}")
    monkeypatch.chdir(tmp_path)
    for name in ("work", "ours"):
        asked = (await describing.submit(ALICE, environment=name)).request
        assert (asked.own, asked.described and asked.described.name) == (False, name)
    assert (await describing.submit(ALICE)).request.described is None
    # Whoever asks from the same directory means the same.
    file = DescriptionFile(str(here), str(tmp_path), here.read_text())
    again = Submit(request=request(environment="work"), descriptions=(file,))
    [record] = await describing.answers(again, ALICE)
    assert isinstance(record, RequestRecord)
    assert (record.request.own, record.request.classes) == (False, ("x",))


async def test_nobody_is_told_of_environments_that_are_not_for_them(describing: Bench) -> None:
    with pytest.raises(EncampError, match="no environment 'our'") as caught:
        await describing.submit(BOB, environment="our")
    assert "ours" not in caught.value.hint
    with pytest.raises(EncampError, match="Did you mean 'ours'"):
        await describing.submit(ALICE, environment="our")


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("ours: [", 0o644, ":2:1: this is not YAML: "),
        ("ours: {extends: mini}", 0o666, " can be written to by others; "),
    ],
)
async def test_file_of_the_site_that_cannot_be_read_is_blamed_for_what_is_missing(
    describing: Bench,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    text: str,
    mode: int,
    why: str,
) -> None:
    file = tmp_path / "etc" / "environments.yaml"
    file.write_text(text)
    file.chmod(mode)
    said = f"Not all environments of the site are known: {file}{why}"
    for question in (
        Submit(request=request(environment="ours")),
        brings("mine", "mine: {extends: ours}"),
        brings("yours", "yours: {extends: mini}\nmine: {extends: ours}"),
        AskEnvironments(name="ours"),
    ):
        for peer in (ALICE, BOB):
            with pytest.raises(EncampError) as caught:
                await describing.answers(question, peer)
            assert caught.value.code is Code.CONFIGURATION
            assert caught.value.sentence.startswith(said)
    # What does not build on it goes on, and those that are known are listed before the error.
    await describing.submit(ALICE)
    await describing.answers(brings("tools"), BOB)
    listed = set()
    with suppress(EncampError):
        async for one in answer(describing.manager, ALICE, AskEnvironments()):
            listed.add(msgspec.to_builtins(one)["name"])
        pytest.fail("Nobody is told that some are missing.")
    assert "mini" in listed
    assert [said in message for message in caplog.messages].count(True) == 1
    # Once more when it was mended and is broken again.
    file.chmod(0o644)
    file.write_text("ours: {extends: mini}")
    await describing.submit(ALICE, environment="ours")
    assert "ours" in [one.name for one in await describing.answers(AskEnvironments())]
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(EncampError, match="Not all environments"):
        await describing.submit(ALICE, environment="ours")
    assert [said in message for message in caplog.messages].count(True) == 2


async def test_descriptions_without_end_are_refused(describing: Bench) -> None:
    with pytest.raises(EncampError, match="more than 100,000 characters"):
        await describing.answers(brings("tools", OWN + "#" * 100_000), BOB)


async def test_machines_are_made_ready_for_jobs_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    etc = tmp_path / "etc"
    etc.mkdir()
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(etc))
    (etc / "environments.yaml").write_text("again: {extends: mini, reuse: true}")
    async with managed(tmp_path / "home") as bench, bench.agent().joined() as agent:
        await bench.settle()
        wanted = PlaceMachines("again", 1, "", "keep_ready")
        for _ in range(2):
            await bench.manager.desk.requests.place(wanted, "f" * 32)
        [record] = await bench.manager.store.requests()
        asked = record.request
        assert (asked.owner, asked.job, asked.reuse) == ("root", None, True)
        await agent.done(await agent.command(), PartResult(machine="m1", began=True), "running")
        done = await bench.until(record, RequestState.DONE)
        assert done.reason.sentence == ""
        for environment, owner, said in (
            ("mini", "", "cannot stand ready"),
            ("again", "nobody-of-this-name", "no user"),
            ("unknown", "", "no environment"),
        ):
            with pytest.raises(EncampError, match=said):
                await bench.manager.desk.requests.place(
                    PlaceMachines(environment, 1, owner, "keep_ready"), "e" * 32
                )


async def test_asked_again_with_the_same_key_it_is_the_same_request(bench: Bench) -> None:
    asked = Submit(request=request(), key="nightly 7")
    answers = await asyncio.gather(*(bench.answers(asked) for _ in range(5)))
    ids = {record.request.id for [record] in answers}
    assert len(ids) == 1
    assert len(await bench.manager.store.requests()) == 1
    [others] = await bench.answers(asked, BOB)
    assert others.request.id not in ids
    with pytest.raises(EncampError, match="used before, for another"):
        await bench.answers(Submit(request=request(count=2), key="nightly 7"))


async def test_whoever_vanishes_while_asking_has_asked_all_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, asked = asyncio.Event(), asyncio.Event()
    add = bench.manager.store.add_request

    async def slowly(record: object) -> None:
        asked.set()
        await go.wait()
        await add(record)  # type: ignore[arg-type]

    monkeypatch.setattr(bench.manager.store, "add_request", slowly)
    asking = asyncio.create_task(bench.submit())
    await asked.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    go.set()
    await until(lambda: bench.manager.core.placement.records)
    assert len(await bench.manager.store.requests()) == 1


async def test_why_is_answered_for_everything(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "triggers.yaml").write_text("lonely: {when: len(hosts) < 2, do: log('x')}")
    bench.manager.load_triggers()
    async with bench.agent().joined() as agent:
        await bench.settle()
        waits = await bench.submit(label="big", requirements="host.disk_free > 200 * GiB")
        await agent.report(machine("m1"))
        [issued] = await bench.answers(IssueCommand(hosts=("node1",), name="test.do"), ROOT)

        async def why(name: str, peer: Peer = ALICE) -> Explanation:
            [explanation] = await bench.answers(AskWhy(id=name), peer)
            assert isinstance(explanation, Explanation)
            return explanation

        job = await why("big")
        assert (job.kind, job.id, job.state) == ("job", waits.request.id, "waiting")
        assert [host.host for host in job.hosts] == ["node1"]
        assert job.hosts[0].cause is Cause.REQUIREMENTS
        assert (await why("node1")).kind == "host"
        assert (await why("mini-m1")).kind == (await why("m1")).kind == "machine"
        await until(lambda: bench.manager.recorder.logged)
        trigger = await why("lonely")
        assert (trigger.kind, trigger.state) == ("trigger", "watched")
        assert "fired" in trigger.reason.sentence
        assert (await why(issued.id, ROOT)).kind == "command"
        with pytest.raises(EncampError, match="that you may see"):
            await why(issued.id, ALICE)
        await bench.answers(EndRequest(id="big"))
        over = await why("big")
        assert over.state == "cancelled"
        assert "alice" in over.reason.sentence
        with pytest.raises(EncampError, match="Nothing on this site"):
            await why("nothing")


async def test_the_site_is_shared_as_its_file_says_when_it_is_read_again(
    bench: Bench, tmp_path: Path
) -> None:
    etc = tmp_path / "etc"
    etc.mkdir()
    file = etc / "site.yaml"
    file.write_text("placement: { limits: [{ name: none at all, machines: 0 }] }")
    async with bench.agent().joined() as agent:
        await bench.settle()
        bench.manager.reload()
        with pytest.raises(EncampError, match="none at all"):
            await bench.submit()
        file.write_text("submit: [bob]\nplacement: { rank: [host.nonsense] }")
        with pytest.raises(EncampError):
            bench.manager.reload()
        # What was in effect stays.
        with pytest.raises(EncampError, match="none at all"):
            await bench.submit()
        file.write_text("submit: [bob]")
        bench.manager.reload()
        with pytest.raises(EncampError, match="alice may not ask"):
            await bench.submit()
        await bench.submit(BOB)
        await agent.command()


async def test_whoever_lists_very_many_requests_lets_others_have_their_turn(bench: Bench) -> None:
    count = 4 * IN_ONE_GO
    for number in range(count):
        wanted = request(id=f"r{number}", owner="alice", detached=True)
        bench.manager.desk.requests.standing.opened(wanted)
        bench.manager.happened(Submitted(wanted))
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(take_turns())
    found = await bench.answers(AskRequests(under_way=True, last=2 * count))
    other.cancel()
    assert [record.request.id for record in found[:2]] == [f"r{count - 1}", f"r{count - 2}"]
    assert len(found) == count
    assert turns >= 3
    assert await bench.answers(AskRequests(under_way=True), BOB) == []
