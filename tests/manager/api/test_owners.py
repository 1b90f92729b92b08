"""What belongs to somebody is theirs over HTTP, too."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from encamp.bus.messages import CommandNews
from encamp.model.command import CommandState
from encamp.model.machine import Share
from encamp.model.request import PartResult
from encamp.model.token import Scope
from tests.manager.api.calling import BODIES, Calling, operations
from tests.manager.playing import machine, until

OF_REQUESTS = [
    "request",
    "end_request",
    "why_request",
    "follow_request",
    "request_output",
    "why",
]
OF_COMMANDS = ["command", "cancel_command", "command_output", "why"]


@pytest.mark.parametrize("scope", [Scope.READ, Scope.USE])
async def test_nobody_sees_or_ends_what_others_asked_for(calls: Calling, scope: Scope) -> None:
    async with calls.bench.agent().joined():
        alice = await calls.caller("alice")
        request = (await alice.post("/v1/requests", json=BODIES["submit"])).json()["request"]["id"]
        command = (await calls.issued("alice")).id
        bob = await calls.caller("bob", scope)
        for things, name in ((OF_REQUESTS, request), (OF_COMMANDS, command)):
            for operation in things:
                method, path = operations()[operation]
                answer = await bob.request(method, path.format(name=name))
                assert answer.status_code in (403, 404), (operation, answer.text)
                assert "test.do" not in answer.text
        assert (await bob.get("/v1/requests")).json()["items"] == []
        assert (await bob.get("/v1/commands")).json()["items"] == []
        mine = (await alice.get("/v1/requests")).json()["items"]
        assert [record["request"]["id"] for record in mine] == [request]
        assert mine[0]["request"]["owner"] == "alice"
        assert mine[0]["state"] not in ("cancelled", "failed")


async def test_nobody_sees_what_machines_of_others_run(calls: Calling) -> None:
    async with calls.bench.agent().joined() as agent:
        await calls.bench.settle()
        await calls.bench.submit(job=None)
        command = await agent.command()
        await agent.done(command, PartResult(machine="m1", standing=True), "start")
        inside = msgspec.structs.replace(
            machine("m1"),
            command=("mysql", "--password=hush"),
            variables={"KEY": "hush"},
            shares=(Share("/home/alice/hush", "/data"),),
        )
        await agent.report(inside)
        standing = calls.manager.desk.requests.standing
        await until(lambda: standing.made_for("node1", "m1"))
        for owner, scope, seen in (
            ("alice", Scope.READ, True),
            ("bob", Scope.USE, False),
            ("root", Scope.ADMINISTER, True),
        ):
            caller = await calls.caller(owner, scope)
            for path in ("/v1/machines", "/v1/machines/m1"):
                answer = await caller.get(path)
                assert answer.status_code == 200
                assert "mini-m1" in answer.text
                assert ("hush" in answer.text) is seen, (owner, path)


async def test_hosts_and_events_tell_nobody_what_others_do(calls: Calling) -> None:
    async with calls.bench.agent().joined() as agent:
        await calls.bench.settle()
        await calls.bench.submit(job=None)
        await agent.phase(await agent.command(), "start", "m1")
        await agent.report(msgspec.structs.replace(machine("m1"), command=("hush",)))
        issued = await calls.issued("alice")
        news = CommandNews(id=issued.id, state=CommandState.FAILED, reason="it said hush")
        await agent.say(news)
        root = await calls.caller("root", Scope.ADMINISTER)
        while "it said hush" not in (await root.get("/v1/events?last=1000")).text:
            await asyncio.sleep(0.005)
        for caller, seen in (
            (root, True),
            (await calls.caller("alice", Scope.READ), True),
            (await calls.caller("bob", Scope.USE), False),
        ):
            for path, own in (
                ("/v1/hosts", "hush"),
                ("/v1/hosts/node1", "hush"),
                ("/v1/events?last=1000", "it said hush"),
                ("/v1/events?last=1000", "Machine mini-m1"),
            ):
                text = (await caller.get(path)).text
                assert "node1" in text
                assert (own in text) is seen, path


async def test_nobody_hears_how_requests_of_others_get_on(calls: Calling) -> None:
    record = await calls.bench.submit()
    for owner, scope, heard in (
        ("alice", Scope.READ, True),
        ("bob", Scope.USE, False),
        ("root", Scope.ADMINISTER, True),
    ):
        caller = await calls.caller(owner, scope)
        answer = await caller.get("/v1/events?last=1000")
        assert (record.request.id in answer.text) is heard, owner


async def test_owner_of_a_request_is_the_tokens_whatever_is_said(calls: Calling) -> None:
    alice = await calls.caller("alice")
    lie = {**BODIES["submit"], "owner": "root"}
    answer = await alice.post("/v1/requests", json=lie)
    assert answer.status_code == 400
    assert "unknown field `owner`" in answer.json()["sentence"]


async def test_commands_are_issued_as_the_sites_rights_say(calls: Calling) -> None:
    async with calls.bench.agent().joined():
        for owner, status in (("alice", 201), ("carol", 403)):
            caller = await calls.caller(owner)
            answer = await caller.post("/v1/commands", json=BODIES["issue_command"])
            assert answer.status_code == status, answer.text


async def test_machines_are_moved_by_their_owners(calls: Calling) -> None:
    async with calls.bench.agent().joined() as agent:
        await calls.bench.settle()
        await calls.bench.submit(job=None)
        await agent.done(await agent.command(), PartResult(machine="m1", standing=True), "start")
        await agent.report(machine("m1"))
        removal = {"move": "remove", "force": True}
        for owner, status in (("bob", 404), ("alice", 201)):
            caller = await calls.caller(owner)
            answer = await caller.post("/v1/machines/mini-m1/moves", json=removal)
            assert answer.status_code == status, answer.text
        told = agent.told[await agent.command(1)]
        assert (told.name, told.arguments["owner"]) == ("machine.remove", "alice")
