"""Questions of the command line over HTTP: answered as at the door, for whoever the token says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from encamp.cli import requests
from encamp.client import far_door
from encamp.client.far_door import HttpDoor
from encamp.client.login import Login
from encamp.client.place import Place
from encamp.door.client import AnyDoor, UnansweredError, WentAwayError, ask, ask_async
from encamp.door.frames import ANSWER, LENGTH, QUESTION, Heard, decode_part, frame
from encamp.door.questions import (
    AskAudit,
    AskEvents,
    AskHosts,
    AskRequests,
    AskStatus,
    CreateToken,
    FollowRequest,
    Question,
    Status,
    Submit,
)
from encamp.manager.api import limits, streaming
from encamp.manager.api.server import ApiServer
from encamp.manager.api.standby import StandingBy
from encamp.manager.store.tenure import cut_off
from encamp.model.audit import AuditEntry
from encamp.model.errors import Code, EncampError
from encamp.model.event import Event, EventKind
from encamp.model.host import Host
from encamp.model.request import RequestRecord
from encamp.model.site import Api
from encamp.model.token import NewToken, Scope
from tests.manager.api.calling import Calling
from tests.manager.playing import request
from tests.site.siting import free_port


async def door(calls: Calling, owner: str = "alice", scope: Scope = Scope.USE) -> HttpDoor:
    secret = await calls.secret(owner, scope)
    return HttpDoor(Place(login=Login(url=calls.server.address, token=secret)))


async def items(door: AnyDoor, question: Question, expected: type[Any]) -> list[Any]:
    async with asyncio.timeout(60), aclosing(ask_async(door, question, expected)) as answer:
        return [item async for item in answer]


async def refusal(door: HttpDoor, question: Question) -> EncampError:
    with pytest.raises(EncampError) as refused:
        await items(door, question, Status)
    return refused.value


SUBMIT = Submit(request=request(detached=True))


async def test_answers_are_those_of_the_door(calls: Calling) -> None:
    far = await door(calls)
    async with calls.bench.agent().joined(), calls.bench.agent("node2").joined():
        here = [
            host async for host in ask_async(calls.bench.path / "manager.sock", AskHosts(), Host)
        ]
        assert [host.name for host in here] == ["node1", "node2"]
        assert await items(far, AskHosts(), Host) == here
        assert await asyncio.to_thread(lambda: list(ask(far, AskHosts(), Host))) == here
    (status,) = await items(far, AskStatus(), Status)
    assert (status.asker.user, status.asker.scope) == ("alice", Scope.USE)
    assert not status.asker.administrator
    assert status.asker.expires > 0


async def test_token_says_who_asks_and_how_far_it_goes(calls: Calling) -> None:
    (record,) = await items(await door(calls), SUBMIT, RequestRecord)
    assert record.request.owner == "alice"
    assert await items(await door(calls, "bob"), AskRequests(last=10), RequestRecord) == []
    reading = await door(calls, scope=Scope.READ)
    assert [
        one.request.id for one in await items(reading, AskRequests(last=10), RequestRecord)
    ] == [record.request.id]
    refused = await refusal(reading, SUBMIT)
    assert (refused.code, refused.sentence) == (
        Code.NOT_PERMITTED,
        "This token is for 'read', and this needs 'use'.",
    )
    new = CreateToken(owner="bob", scope=Scope.USE, label="", lifetime=60.0)
    assert (await refusal(await door(calls), new)).code is Code.NOT_PERMITTED
    administering = await door(calls, "root", Scope.ADMINISTER)
    (made,) = await items(administering, new, NewToken)
    assert made.token.owner == "bob"
    audited = await items(administering, AskAudit(last=10), AuditEntry)
    assert [(entry.who, entry.action, entry.through) for entry in audited] == [
        ("alice", "request.submit", "http"),
        ("alice", "request.submit", "http"),
        ("alice", "token.create", "http"),
        ("root", "token.create", "http"),
    ]


NONSENSE: tuple[tuple[bytes, str, int], ...] = (
    (b"", QUESTION, 400),
    (b"\xc1", QUESTION, 400),
    (b"\x81\xa4type\xa7Nothing", QUESTION, 400),
    (b"\x91" * 100_000, QUESTION, 400),
    (frame(AskStatus()), QUESTION, 400),
    (frame(AskStatus())[LENGTH.size :], "application/json", 415),
    (b"\x00" * ((1 << 20) + 1), QUESTION, 413),
)


async def test_what_is_no_question_is_refused_with_a_status(calls: Calling) -> None:
    caller = await calls.caller()
    for body, kind, status in NONSENSE:
        headers = {"Content-Type": kind}
        answer = await caller.post("/v1/questions", content=body, headers=headers)
        assert answer.status_code == status, answer.text
        assert answer.json()["sentence"]
    assert calls.server.limits.streams == 0


async def test_silence_is_interrupted_and_the_answer_goes_on(
    calls: Calling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that nothing in between takes the connection for dead."""
    monkeypatch.setattr(streaming, "HEARTBEAT", 0.05)
    caller = await calls.caller("root", Scope.ADMINISTER)
    question = frame(AskEvents(last=0, follow=True))[LENGTH.size :]
    headers = {"Content-Type": QUESTION}
    async with caller.stream("POST", "/v1/questions", content=question, headers=headers) as answer:
        assert answer.headers["content-type"] == ANSWER
        pieces = answer.aiter_raw()
        for _ in range(3):
            assert decode_part((await anext(pieces))[LENGTH.size :]) == Heard()
    far = await door(calls, "root", Scope.ADMINISTER)
    async with aclosing(ask_async(far, AskEvents(last=0, follow=True), Event)) as events:
        first = asyncio.ensure_future(anext(events))
        while calls.server.limits.streams != 1:
            await asyncio.sleep(0.005)
        done, _ = await asyncio.wait({first}, timeout=0.2)
        assert not done
        calls.manager.recorder.event(EventKind.NOTIFICATION, "At last.")
        async with asyncio.timeout(60):
            assert (await first).sentence == "At last."
    await calls.until_no_stream_is_open()


@asynccontextmanager
async def followed(
    calls: Calling, far: HttpDoor
) -> AsyncIterator[tuple[RequestRecord, AsyncGenerator[RequestRecord, None]]]:
    """A request that waits, and its first record."""
    (record,) = await items(far, SUBMIT, RequestRecord)
    async with aclosing(
        ask_async(far, FollowRequest(id=record.request.id), RequestRecord)
    ) as records:
        first = await anext(records)
        assert first.request.id == record.request.id
        yield first, records


async def test_whoever_goes_away_frees_what_was_held(calls: Calling) -> None:
    far = await door(calls)
    async with followed(calls, far):
        assert calls.server.limits.streams == 1
    await calls.until_no_stream_is_open()


async def test_token_that_is_taken_back_ends_the_answer(calls: Calling) -> None:
    far = await door(calls)
    async with followed(calls, far) as (record, records):
        (token,) = (one for one in calls.manager.tokens.all() if one.owner == "alice")
        await calls.manager.tokens.revoke(token)
        await calls.manager.desk.requests.end(record.request.id, "alice", "root")
        with pytest.raises(EncampError, match="not valid any more") as refused:
            async with asyncio.timeout(60):
                await anext(records)
        assert refused.value.code is Code.NOT_PERMITTED
    refused_again = await refusal(far, AskStatus())
    assert refused_again.code is Code.NOT_PERMITTED
    assert "does not take the token" in refused_again.sentence


async def test_manager_that_goes_away_can_be_waited_for(calls: Calling) -> None:
    far = await door(calls)
    async with followed(calls, far) as (_, records):
        await calls.bench.stop()
        with pytest.raises(UnansweredError, match="went away in the middle of its answer"):
            async with asyncio.timeout(60):
                await anext(records)
        with pytest.raises(UnansweredError, match="does not answer: connection refused"):
            await items(far, AskStatus(), Status)
        await calls.bench.start()


@pytest.mark.parametrize("far", [True, False], ids=["over HTTP", "at the door"])
async def test_what_a_manager_that_was_cut_off_was_asked_is_asked_of_the_next_one(
    calls: Calling,
    far: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As a leader finds that another leads, what it was to write down is refused."""
    write = calls.manager.store.add_request
    failing = [cut_off(calls.manager.store.tenure)]

    async def add_request(*arguments: Any) -> Any:
        written = await write(*arguments)
        if failing:
            raise failing.pop()  # It is not known here that it was written.
        return written

    monkeypatch.setattr(calls.manager.store, "add_request", add_request)
    place = await door(calls) if far else calls.bench.path / "manager.sock"
    async with calls.bench.agent().joined():
        record = await requests.submit(place, request(detached=True))
    assert not failing
    queued = [one.request.id for one in await items(place, AskRequests(), RequestRecord)]
    assert queued == [record.request.id]
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


async def test_one_more_than_there_is_room_for_waits_for_it(
    calls: Calling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MOST_STREAMS", 1)
    monkeypatch.setattr("encamp.manager.api.asking.MOST_STREAMS", 1)
    far = await door(calls)
    async with followed(calls, far):
        monkeypatch.setattr(far_door, "PATIENCE", 0.5)
        full = await refusal(far, AskStatus())
        assert (full.code, full.transient) == (Code.NO_ROOM, True)
        monkeypatch.setattr(far_door, "PATIENCE", 60.0)
        waiting = asyncio.create_task(items(far, AskStatus(), Status))
        await asyncio.wait({waiting}, timeout=0.1)
        assert not waiting.done()
    assert len(await waiting) == 1


async def test_leader_is_found_among_several(
    calls: Calling, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = await calls.secret()
    api = Api(listen="127.0.0.1:0")
    async with StandingBy(api, lambda: "This manager stands by: the one on m1 leads.") as other:
        urls = ("http://127.0.0.1:9", other.address, calls.server.address)
        far = HttpDoor(Place(login=Login(url=",".join(urls), token=secret)))
        for _ in range(2):
            assert len(await items(far, AskStatus(), Status)) == 1
        assert len(await asyncio.to_thread(lambda: list(ask(far, AskStatus(), Status)))) == 1
        monkeypatch.setattr(far_door, "PATIENCE", 1.5)
        alone = HttpDoor(Place(login=Login(url=",".join(urls[:2]), token=secret)))
        with pytest.raises(UnansweredError, match="the one on m1 leads") as refused:
            await items(alone, AskStatus(), Status)
        assert refused.value.code is Code.UNREACHABLE


async def test_manager_that_is_about_to_lead_is_waited_for_though_there_is_no_other(
    calls: Calling,
) -> None:
    secret = await calls.secret()
    heard = asyncio.Event()

    def why() -> str:
        heard.set()
        return "This manager is about to lead the site."

    async with StandingBy(Api(listen="127.0.0.1:0"), why, lambda: True) as standing:
        far = HttpDoor(Place(login=Login(url=standing.address, token=secret)))
        waiting = asyncio.create_task(items(far, AskStatus(), Status))
        await heard.wait()
        async with standing.giving_way(calls.server._entry):
            assert len(await waiting) == 1


async def test_manager_that_was_logged_in_to_is_waited_for_when_nobody_is_there(
    calls: Calling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(far_door, "SUCCESSION", 60.0)
    monkeypatch.setenv("ENCAMP_USER_CONFIG", str(tmp_path))
    for name in ("URL", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"ENCAMP_{name}", raising=False)
    address = f"127.0.0.1:{free_port()}"
    saved = tmp_path / "login.json"
    login = Login(url=f"http://{address}", token=await calls.secret())
    saved.write_bytes(msgspec.json.encode(login))
    saved.chmod(0o600)
    far, stranger = HttpDoor(Place()), HttpDoor(Place(login=login))
    waiting = asyncio.create_task(items(far, AskStatus(), Status))
    with pytest.raises(UnansweredError, match="does not answer"):
        await items(stranger, AskStatus(), Status)
    async with ApiServer(calls.manager, Api(listen=address)):
        assert len(await waiting) == 1


async def test_mistake_of_the_managers_own_is_told_as_one(
    calls: Calling, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> object:
        raise ZeroDivisionError

    monkeypatch.setattr("encamp.manager.api.asking.answer_once_more", broken)
    assert (await refusal(await door(calls), AskStatus())).code is Code.INTERNAL
    await calls.until_no_stream_is_open()


async def test_manager_that_leaves_before_it_answers_may_have_heard() -> None:
    """Whoever asked has to know that, and what was never a manager is not waited for."""

    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(leave, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        place = Place(login=Login(url=f"http://127.0.0.1:{port}", token="x"))
        assert "wants https" in (await refusal(HttpDoor(place), AskStatus())).sentence
        place.answered = True
        with pytest.raises(WentAwayError, match="went away before it answered"):
            await items(HttpDoor(place), SUBMIT, RequestRecord)
