"""Answers that take their time, and callers that do not."""

from __future__ import annotations

import asyncio
import json

import pytest

from encamp.bus.messages import CommandNews
from encamp.manager.api import connection, streaming
from encamp.model.command import CommandState
from encamp.model.event import EventKind
from encamp.model.token import Scope
from tests.manager.api.calling import BODIES, Calling


async def test_events_go_on_after_the_number_that_was_seen_last(calls: Calling) -> None:
    caller = await calls.caller("alice", Scope.READ)
    seen: list[int] = []
    for round_ in range(3):
        number = seen[-1] if seen else 0
        async with caller.stream("GET", f"/v1/events/stream?since={number}") as answer:
            assert answer.headers["content-type"] == "application/x-ndjson"
            calls.manager.recorder.event(EventKind.HOST_TROUBLE, f"This is number {round_}.")
            async for line in answer.aiter_lines():
                if line:
                    event = json.loads(line)
                    seen.append(event["number"])
                    if event["sentence"] == f"This is number {round_}.":
                        break
    assert seen == sorted(set(seen))
    all_of_them = (await caller.get("/v1/events?last=1000")).json()["items"]
    assert [event["number"] for event in all_of_them][: len(seen)] == seen


async def test_browsers_are_told_events_as_they_like_them(calls: Calling) -> None:
    caller = await calls.caller("alice", Scope.READ)
    headers = {"Accept": "text/event-stream", "Last-Event-ID": "1"}
    async with caller.stream("GET", "/v1/events/stream", headers=headers) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        lines = answer.aiter_lines()
        assert await anext(lines) == "id: 2"
        assert json.loads((await anext(lines)).removeprefix("data: "))["number"] == 2
        assert await anext(lines) == ""


async def test_output_of_a_command_comes_as_it_is_printed(calls: Calling) -> None:
    async with calls.bench.agent().joined() as agent:
        record = await calls.issued()
        caller = await calls.caller("alice", Scope.READ)
        await agent.say(
            CommandNews(id=record.id, state=CommandState.RUNNING, piece=b"first \xff\n")
        )
        async with caller.stream("GET", f"/v1/commands/{record.id[:10]}/output") as answer:
            pieces = answer.aiter_raw()
            assert await anext(pieces) == b"first \xff\n"
            news = CommandNews(id=record.id, state=CommandState.DONE, offset=8, piece=b"last\n")
            await agent.say(news)
            assert b"".join([piece async for piece in pieces]) == b"last\n"
        again = await caller.get(f"/v1/commands/{record.id}/output?offset=9")
        assert again.content == b"ast\n"


async def test_request_is_followed_until_it_is_over(calls: Calling) -> None:
    caller = await calls.caller()
    record = (await caller.post("/v1/requests", json=BODIES["submit"])).json()
    name = record["request"]["id"]
    states = []
    async with caller.stream("GET", f"/v1/requests/{name}/stream") as answer:
        async for line in answer.aiter_lines():
            if line:
                states.append(json.loads(line)["state"])
                if len(states) == 1:
                    ended = await caller.delete(f"/v1/requests/{name}")
                    assert ended.status_code == 200
    assert states[0] == "waiting"
    assert states[-1] == "cancelled"


async def test_caller_that_vanishes_frees_everything(calls: Calling) -> None:
    followers = calls.manager.dispatcher.commands.followers
    async with calls.bench.agent().joined():
        record = await calls.issued()
        secret = await calls.secret("alice", Scope.READ)
        host, port = calls.server.address.removeprefix("http://").split(":")
        writers = []
        for path in (f"/v1/commands/{record.id}/output", "/v1/events/stream?since=0"):
            _, writer = await asyncio.open_connection(host, int(port))
            head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n\r\n"
            writer.write(head.encode())
            writers.append(writer)
        async with asyncio.timeout(20):
            while calls.server.limits.streams < 2 or not followers._of:
                await asyncio.sleep(0.005)
        for writer in writers:
            writer.transport.abort()
        await calls.until_no_stream_is_open()
        assert followers._of == {}


async def test_caller_that_does_not_read_is_not_written_to_without_end(
    calls: Calling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "UNREAD", 0.2)
    secret = await calls.secret("alice", Scope.READ)
    host, port = calls.server.address.removeprefix("http://").split(":")
    for _ in range(2000):
        calls.manager.recorder.event(EventKind.HOST_TROUBLE, "x" * 10_000)
    _, writer = await asyncio.open_connection(host, int(port), limit=1024)
    head = f"GET /v1/events/stream?since=0 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}"
    writer.write(f"{head}\r\n\r\n".encode())
    async with asyncio.timeout(20):
        while not calls.server.limits.streams:
            await asyncio.sleep(0.005)
    await calls.until_no_stream_is_open()
    writer.close()


async def test_silence_is_interrupted_so_that_all_know_that_it_goes_on(
    calls: Calling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "HEARTBEAT", 0.05)
    caller = await calls.caller("alice", Scope.READ)
    async with (
        caller.stream("GET", "/v1/events/stream") as answer,
    ):
        pieces = answer.aiter_raw()
        for _ in range(3):
            assert (await anext(pieces)).strip(b"\n") == b""


async def test_token_that_is_taken_back_ends_what_it_has_opened(calls: Calling) -> None:
    caller = await calls.caller("alice", Scope.READ)
    async with caller.stream("GET", "/v1/events/stream") as answer:
        lines = answer.aiter_lines()
        assert await anext(lines) == ""
        (token,) = (one for one in calls.manager.tokens.all() if one.owner == "alice")
        await calls.manager.tokens.revoke(token)
        calls.manager.recorder.event(EventKind.HOST_TROUBLE, "This is not for her any more.")
        async with asyncio.timeout(20):
            rest = "".join([line async for line in lines])
    assert "This is not for her" not in rest
    assert "not valid any more" in rest
    await calls.until_no_stream_is_open()


async def test_manager_that_ends_ends_its_streams(calls: Calling) -> None:
    caller = await calls.caller("alice", Scope.READ)
    async with caller.stream("GET", "/v1/events/stream") as answer:
        lines = answer.aiter_lines()
        assert await anext(lines) == ""
        async with asyncio.timeout(20):
            await calls.bench.stop()
