"""Where the manager answers over HTTP, to whom, and whether it is healthy."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import subprocess
from pathlib import Path

import httpx
import msgspec
import pytest

from encamp import AsyncClient
from encamp.describe.site_file import read_site
from encamp.describe.sources import Level, Source
from encamp.manager.api import connection
from encamp.manager.api.server import ApiServer
from encamp.manager.api.standby import StandingBy
from encamp.model.errors import Code, EncampError
from encamp.model.site import Api
from encamp.model.token import Scope
from tests.manager.api.calling import SITE, Calling, calling
from tests.site.siting import free_port


def site_file(text: str) -> Api | None:
    return read_site(Source("site.yaml", Level.SITE, 0, "/"), text.encode()).api


def certificate(path: Path, name: str) -> Api:
    """One that vouches for itself."""
    path.mkdir(exist_ok=True)
    words = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    files = ["-keyout", str(path / "key"), "-out", str(path / "certificate")]
    about = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    subprocess.run(["openssl", "req", *words, *files, *about], check=True, capture_output=True)
    return Api(listen="127.0.0.1:0", certificate=str(path / "certificate"), key=str(path / "key"))


def test_nothing_listens_unless_it_is_wanted() -> None:
    assert site_file("name: x") is None
    assert site_file("api: {}") == Api()
    assert Api().listen.startswith("127.0.0.1:")


@pytest.mark.parametrize(
    "wrong",
    [
        "api: { listen: '0.0.0.0:7478' }",
        "api: { listen: '[::]:7478' }",
        "api: { listen: '192.0.2.1:7478' }",
        "api: { listen: '999.0.0.1:7478' }",
        "api: { listen: 'localhost' }",
        "api: { key: k }",
        "api: { rate: 0 }",
        "api: { token: x }",
    ],
)
def test_nothing_is_told_to_other_machines_without_a_certificate(wrong: str) -> None:
    with pytest.raises(EncampError) as refused:
        site_file(wrong)
    assert refused.value.code is Code.CONFIGURATION


def test_other_machines_are_answered_with_one() -> None:
    api = site_file("api: { listen: '0.0.0.0:7478', certificate: /c, key: /k }")
    assert api == Api(listen="0.0.0.0:7478", certificate="/c", key="/k")


async def test_certificate_is_shown_and_read_again(tmp_path: Path) -> None:
    api = certificate(tmp_path / "tls", "first")
    async with calling(tmp_path / "home", msgspec.structs.replace(SITE, api=api)) as calls:
        assert calls.server.address.startswith("https://")
        authority = str(tmp_path / "tls" / "certificate")
        secret = await calls.secret("alice", Scope.READ)
        async with AsyncClient(calls.server.address, secret, authority=authority) as site:
            assert (await site.status()).site == "site"
        async with AsyncClient(calls.server.address, secret, patience=0.1) as site:
            with pytest.raises(EncampError, match="is not trusted: self-signed certificate"):
                await site.status()
        certificate(tmp_path / "tls", "second")
        calls.server.reload()
        assert b"second" in await _shown(calls)
        (tmp_path / "tls" / "certificate").write_text("nonsense")
        with pytest.raises(EncampError) as refused:
            calls.server.reload()
        assert refused.value.code is Code.CONFIGURATION
        assert b"second" in await _shown(calls)


async def test_those_who_do_not_get_on_with_tls_do_not_take_all_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = certificate(tmp_path / "tls", "first")
    async with calling(tmp_path / "home", msgspec.structs.replace(SITE, api=api)) as calls:
        monkeypatch.setattr(connection, "MOST_OF_ONE", 3)
        port = int(calls.server.address.rpartition(":")[2])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        # The oldest make room for the newest, and those who get on with it count no more.
        for reader, _ in silent[:2]:
            with contextlib.suppress(ConnectionResetError):
                async with asyncio.timeout(20):
                    assert await reader.read() == b""
        for _ in range(5):
            assert b"first" in await _shown(calls)
        for _, writer in silent:
            writer.close()


async def _shown(calls: Calling) -> bytes:
    """The certificate that a new connection is shown."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    port = int(calls.server.address.rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    return shown


async def test_address_that_is_taken_is_said_so(calls: Calling) -> None:
    listen = calls.server.address.removeprefix("http://")
    with pytest.raises(EncampError, match=f"at {listen}") as refused:
        async with ApiServer(calls.manager, Api(listen=listen)):
            pass
    assert refused.value.code is Code.WRONG_STATE
    assert f"process {os.getpid()} (" in refused.value.sentence
    assert "Errno" not in refused.value.sentence
    assert "/site.yaml" in refused.value.hint


async def test_health_tells_whether_the_store_can_be_written(
    calls: Calling, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = await calls.with_header(None)
    assert (await caller.get("/health/live")).json() == {"status": "ok"}
    assert (await caller.get("/health/ready")).json() == {"status": "ok"}
    monkeypatch.setattr(calls.manager.store._worker, "trouble", "The disk /secret/place is full.")
    assert (await caller.get("/health/live")).status_code == 200
    answer = await caller.get("/health/ready")
    assert answer.status_code == 503
    assert "secret" not in answer.text
    monkeypatch.undo()


async def test_manager_that_stands_by_is_alive_and_sends_callers_away() -> None:
    api = Api(listen=f"127.0.0.1:{free_port()}")
    async with (
        StandingBy(api, lambda: "The manager on node2 leads.") as standing,
        httpx.AsyncClient(base_url=standing.address) as caller,
    ):
        assert (await caller.get("/health/live")).json() == {"status": "ok"}
        for path in ("/health/ready", "/v1/status"):
            answer = await caller.get(path)
            assert answer.status_code == 503
            assert answer.json()["sentence"] == "The manager on node2 leads."
            assert answer.json()["transient"]


async def test_document_can_be_read_by_everybody(calls: Calling) -> None:
    answer = await (await calls.with_header(None)).get("/v1/openapi.json")
    described = answer.json()
    assert described["openapi"].startswith("3.1")
    assert b'"items": false' not in answer.content, "generators of clients stumble over that"
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            named = (method, path)
            assert operation["summary"], named
            assert operation["tags"], named
            if not path.startswith("/health"):
                problems = set(operation["responses"]) - {"200", "201"}
                assert problems >= {"400", "401", "403", "429", "500"}, named
            for status, response in operation["responses"].items():
                content = response["content"]
                if status not in ("200", "201"):
                    schema = content["application/json"]["schema"]
                    assert schema == {"$ref": "#/components/schemas/Problem"}, named
