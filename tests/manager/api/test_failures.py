"""What is wrong with a call is told in one shape, with the right status, and costs little."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from encamp.manager.api import connection, entry
from encamp.manager.api.failures import REASONS, STATUSES, failure
from encamp.model.errors import Code, EncampError
from encamp.model.event import EventKind
from encamp.model.problem import Problem
from encamp.model.token import Scope
from tests.manager.api.calling import Calling, operations


def test_every_code_has_a_status_and_comes_back_as_it_was() -> None:
    assert set(STATUSES) == set(Code)
    for code in Code:
        error = EncampError(code, "A sentence.", "A hint.", transient=True, detail="more")
        status, body, headers = failure(error)
        assert status in REASONS
        assert headers["Retry-After"]
        again = msgspec.json.decode(msgspec.json.encode(body), type=Problem).error()
        assert (again.code, again.sentence, again.hint) == (code, error.sentence, error.hint)
        assert again.transient
        assert again.detail == "more"


def test_room_that_there_will_never_be_is_no_matter_of_waiting() -> None:
    never = EncampError(Code.NO_ROOM, "1597 machines could never be at once.")
    status, _, headers = failure(never)
    assert (status, headers) == (422, {})


SH = {"environment": "mini", "command": ["sh"]}


def submission(more: bytes) -> bytes:
    return b'{"environment": "mini", "command": ["sh"], ' + more + b"}"


NONSENSE: tuple[tuple[str, str, dict[str, Any], int], ...] = (
    ("GET", "/v1/nothing", {}, 404),
    ("GET", "/", {}, 404),
    ("PUT", "/v1/status", {}, 405),
    ("GET", "/v1/machines?limit=0", {}, 400),
    ("GET", "/v1/machines?limit=x", {}, 400),
    ("GET", "/v1/machines?state=flying", {}, 400),
    ("GET", "/v1/machines?hots=node1", {}, 400),
    ("GET", "/v1/machines?page=nonsense", {}, 422),
    ("GET", "/v1/machines?page=gaFh", {}, 422),
    ("GET", "/v1/machines?host=none", {}, 422),
    ("GET", "/v1/hosts/none", {}, 404),
    ("GET", "/v1/hosts/%00", {}, 404),
    ("GET", "/v1/hosts/%ff%fe", {}, 404),
    ("GET", "/v1/events?last=999999999999999999999", {}, 400),
    ("GET", "/v1/environments/none", {}, 404),
    ("GET", "/v1/requests/none", {}, 404),
    ("POST", "/v1/requests", {"content": b"{"}, 400),
    ("POST", "/v1/requests", {"content": b"[" * 100_000}, 400),
    ("POST", "/v1/requests", {"content": b"\xff"}, 400),
    ("POST", "/v1/requests", {"json": []}, 400),
    ("POST", "/v1/requests", {"json": {}}, 400),
    ("POST", "/v1/requests", {"json": {"environment": "mini", "counts": 2}}, 400),
    ("POST", "/v1/requests", {"json": {"environment": "mini", "count": 0}}, 400),
    ("POST", "/v1/requests", {"json": {"environment": "none"}}, 404),
    ("POST", "/v1/requests", {"json": {"environment": "mini", "requirements": "x ="}}, 422),
    ("POST", "/v1/requests", {"json": {"environment": "mini", "command": []}}, 400),
    ("POST", "/v1/requests", {"json": {"environment": "mini", "workdir": "/"}}, 422),
    ("POST", "/v1/requests", {"json": {"environment": "mini", "command": [""]}}, 422),
    ("POST", "/v1/requests", {"json": {"environment": "mini", "command": ["sh", "a\0b"]}}, 422),
    ("POST", "/v1/requests", {"content": submission(b'"label": "\\ud800"')}, 400),
    ("POST", "/v1/requests", {"json": {**SH, "variables": {"A=": ""}}}, 422),
    ("POST", "/v1/requests", {"json": {**SH, "variables": {"": ""}}}, 422),
    ("POST", "/v1/requests", {"json": {**SH, "variables": {"A": "\0"}}}, 422),
    ("POST", "/v1/requests", {"json": {**SH, "workdir": "/a\0"}}, 422),
    ("POST", "/v1/requests", {"json": {**SH, "workdir": "here"}}, 422),
    ("POST", "/v1/requests", {"json": {**SH, "network": "carrier"}}, 422),
    ("POST", "/v1/requests", {"json": {**SH, "label": "a\x1b[2J"}}, 422),
    ("POST", "/v1/requests", {"json": {**SH, "requirements": "\0"}}, 422),
    ("POST", "/v1/requests", {"json": {"environment": "mini\0"}}, 404),
    ("POST", "/v1/requests", {"content": submission(b'"timeout": NaN')}, 400),
    ("POST", "/v1/requests", {"content": submission(b'"timeout": 1e999')}, 400),
    ("POST", "/v1/requests", {"content": submission(b'"memory": 1e40')}, 400),
    ("POST", "/v1/requests", {"content": submission(b'"priority": 99999999999999999999')}, 400),
    ("POST", "/v1/requests", {"content": b" " * ((1 << 20) + 1)}, 413),
    ("POST", "/v1/commands", {"content": b'{"hosts":["*"],"name":"x","timeout":1e999}'}, 400),
    ("GET", "/v1/hosts/node1/properties?fresh=true&timeout=nan", {}, 400),
    ("GET", "/v1/hosts/node1/properties?fresh=true&timeout=inf", {}, 400),
)


async def test_what_makes_no_sense_is_refused(calls: Calling) -> None:
    caller = await calls.caller()
    for method, path, given, status in NONSENSE:
        answer = await caller.request(method, path, **given)
        assert answer.status_code == status, (path, given, answer.text)
        assert answer.headers["content-type"] == "application/json"
        told = msgspec.json.decode(answer.content, type=Problem)
        assert told.sentence.endswith((".", "?"))
        assert "Traceback" not in answer.text


async def test_file_that_cannot_be_read_keeps_no_others_environments_from_being_listed(
    calls: Calling, tmp_path: Path
) -> None:
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "environments.yaml").write_text("tools: [")
    caller = await calls.caller()
    listed = await caller.get("/v1/environments")
    assert "mini" in [one["name"] for one in listed.json()["items"]]
    missing = await caller.get("/v1/environments/tools")
    assert missing.status_code == 422
    assert "environments.yaml:2:1: this is not YAML" in missing.json()["sentence"]


@pytest.mark.parametrize("kind", ["application/json", "application/msgpack", "text/plain"])
async def test_bodies_of_whatever_bytes_are_understood_or_refused_at_every_address(
    calls: Calling, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    caller = await calls.caller("root", Scope.ADMINISTER)
    chance = random.Random(7)
    bodies = [
        b'{"environment":"\xff\xfe"}',
        b'{"\xff":1}',
        b'"\xed\xa0\x80"',
        b"\x00" * 9,
        *(chance.randbytes(chance.randrange(1, 40)) for _ in range(20)),
    ]
    taking = [(method, path) for method, path in operations().values() if method != "GET"]
    for method, path in taking:
        for body in bodies:
            place = re.sub(r"{[^}]*}", "none", path)
            headers = {"Content-Type": kind}
            answer = await caller.request(method, place, content=body, headers=headers)
            assert answer.status_code < 500, (method, place, body, answer.text)
            if answer.status_code >= 400:
                assert msgspec.json.decode(answer.content, type=Problem).sentence.endswith(".")
    assert not caplog.records


@pytest.mark.parametrize("token", [True, False])
async def test_body_that_says_in_two_ways_how_long_it_is_ends_the_connection(
    calls: Calling, token: bool
) -> None:
    secret = await calls.secret()
    host, port = calls.server.address.removeprefix("http://").split(":")
    shown = f"Authorization: Bearer {secret}\r\n" if token else ""
    head = f"POST /v1/requests HTTP/1.1\r\nHost: x\r\n{shown}"
    lengths = "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    hidden = "GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"{head}{lengths}0\r\n\r\n{hidden}".encode())
    async with asyncio.timeout(20):
        heard = await reader.read()
    assert heard.startswith(b"HTTP/1.1 400")
    assert heard.count(b"HTTP/1.1") == 1
    assert b"Transfer-Encoding" in heard
    writer.close()


async def test_body_without_a_length_is_bounded_too(calls: Calling) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b" " * (64 << 10)

    caller = await calls.caller()
    assert (await caller.post("/v1/requests", content=endless())).status_code == 413


async def test_mistake_of_the_managers_own_is_told_in_its_log_alone(
    calls: Calling, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*nothing: object) -> None:
        raise RuntimeError("the password is swordfish")

    monkeypatch.setattr("encamp.manager.answering.check_scope", broken)
    caller = await calls.caller()
    with caplog.at_level(logging.ERROR):
        answer = await caller.get("/v1/status")
    assert answer.status_code == 500
    assert answer.json()["code"] == "internal"
    assert "swordfish" not in answer.text
    assert "swordfish" in caplog.text


async def test_slow_callers_are_not_waited_for(
    calls: Calling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PATIENCE", 0.2)
    monkeypatch.setattr(entry, "PATIENCE", 0.2)
    secret = await calls.secret()
    host, port = calls.server.address.removeprefix("http://").split(":")
    head = f"POST /v1/requests HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n"
    for said, answered in (
        (b"", b""),
        (b"GET /v1/sta", b""),
        (f"{head}Content-Length: 5\r\n\r\n{{".encode(), b"HTTP/1.1 408"),
    ):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(said)
        async with asyncio.timeout(20):
            heard = b""
            with contextlib.suppress(ConnectionResetError):
                heard = await reader.read()
        assert heard.startswith(answered)
        assert bool(heard) is bool(answered)
        writer.close()


async def test_call_that_breaks_off_is_nothing_to_be_logged(
    calls: Calling, caplog: pytest.LogCaptureFixture
) -> None:
    head = "POST /v1/requests HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Authorization: Bearer {await calls.secret()}\r\nContent-Length: 100\r\n\r\nabcde"
    host, port = calls.server.address.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.encode())
    await writer.drain()
    writer.close()
    caller = await calls.caller()
    counted = 'encamp_http_requests_total{method="POST",route="/v1/requests",status="'
    async with asyncio.timeout(60):
        while counted not in (told := (await caller.get("/metrics")).text):
            await asyncio.sleep(0.01)
    assert f'{counted}400"' in told
    assert [one for one in caplog.records if one.levelno > logging.DEBUG] == []


async def test_half_sent_calls_take_no_place_from_whole_ones_of_the_same_address(
    calls: Calling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MOST_OF_ONE", 3)
    host, port = calls.server.address.removeprefix("http://").split(":")
    caller = await calls.caller()
    async with caller.stream("GET", "/v1/events/stream") as under_way:
        assert under_way.is_success
        half = []
        for _ in range(8):
            half.append(await asyncio.open_connection(host, int(port)))
            half[-1][1].write(b"GET /v1/sta")
            await half[-1][1].drain()
        # The oldest made room for the newest.
        for reader, _ in half[:6]:
            with contextlib.suppress(ConnectionResetError):
                async with asyncio.timeout(20):
                    assert await reader.read() == b""
        assert (await (await calls.caller()).get("/v1/status")).is_success
        calls.manager.recorder.event(EventKind.HOST_TROUBLE, "It is still told.")
        async with asyncio.timeout(20):
            lines = under_way.aiter_lines()
            while "It is still told." not in await anext(lines):
                pass
    for _, writer in half:
        writer.close()
        with contextlib.suppress(ConnectionResetError):
            await writer.wait_closed()


async def test_one_address_does_not_take_all_places(
    calls: Calling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MOST_OF_ONE", 2)
    host, port = calls.server.address.removeprefix("http://").split(":")
    caller = await calls.caller()
    async with (
        caller.stream("GET", "/v1/events/stream") as one,
        caller.stream("GET", "/v1/events/stream") as other,
    ):
        assert one.is_success
        assert other.is_success
        reader, writer = await asyncio.open_connection(host, int(port))
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(20):
                assert await reader.read() == b""
        writer.close()
    async with asyncio.timeout(20):
        while calls.server._port._server.server_state.connections:
            await asyncio.sleep(0.005)
    assert (await (await calls.caller()).get("/v1/status")).is_success


async def test_nonsense_on_the_wire_ends_the_connection(calls: Calling) -> None:
    host, port = calls.server.address.removeprefix("http://").split(":")
    for said in (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"GIBBERISH\r\n\r\n"):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(said)
        async with asyncio.timeout(20):
            assert (await reader.read()).startswith(b"HTTP/1.1 400")
        writer.close()
    assert (await (await calls.caller("alice", Scope.READ)).get("/v1/status")).is_success
