"""The Python client against a live manager: typed, without gaps, and never twice."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from encamp import AsyncClient, Client
from encamp.client import calls as requests
from encamp.client.trying import Tries
from encamp.model.command import CommandState
from encamp.model.errors import Code, EncampError
from encamp.model.event import EventKind
from encamp.model.host import Presence
from encamp.model.machine import State
from encamp.model.request import RequestState
from encamp.model.token import Scope
from tests.manager.api.calling import Calling, calling
from tests.manager.playing import HonestAgent, machine

T = TypeVar("T")


@pytest.fixture
async def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Calling]:
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(tmp_path / "etc"))
    monkeypatch.setenv("ENCAMP_USER_CONFIG", str(tmp_path / "user"))
    async with calling(tmp_path / "home") as made:
        yield made


class Proxy:
    """Stands between, and breaks off some connections when the answer comes."""

    def __init__(self, address: str) -> None:
        self._host, self._port = address.removeprefix("http://").split(":")
        self.breaks = 0
        self.broken = 0
        self.url = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Proxy]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._host, int(self._port))
        asking = asyncio.create_task(self._copy(reader, back))
        try:
            while data := await there.read(65536):
                if self.broken < self.breaks:
                    self.broken += 1
                    break
                writer.write(data)
        finally:
            asking.cancel()
            writer.transport.abort()
            back.transport.abort()

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)


async def asked(calls: Calling, work: Callable[[Client], T], scope: Scope = Scope.USE) -> T:
    """What a program without an event loop does, beside this one."""
    secret = await calls.secret("alice", scope)

    def run() -> T:
        with Client(calls.server.address, secret) as client:
            return work(client)

    return await asyncio.to_thread(run)


async def client(calls: Calling, owner: str = "alice", scope: Scope = Scope.USE) -> AsyncClient:
    return AsyncClient(calls.server.address, await calls.secret(owner, scope))


async def test_whole_site_is_told_in_the_models_own_types(calls: Calling) -> None:
    agent = calls.bench.agent()
    async with agent.joined():
        await agent.report(machine("aa"), machine("bb", State.STOPPED))

        def look(site: Client) -> None:
            assert site.status().hosts["joined"] == 1
            (host,) = site.hosts()
            assert host.presence is Presence.JOINED
            assert site.host("node1") == host
            assert site.properties("node1", ["cpus"])["cpus"].value == 4
            assert [brief.commands for brief in site.hosts(readings=["cpus"])] == [()]
            assert [one.machine.id for one in site.machines()] == ["aa", "bb"]
            assert [one.machine.id for one in site.machines(states=[State.STOPPED])] == ["bb"]
            assert site.machine("mini-aa").host == "node1"
            assert "mini" in [environment.name for environment in site.environments()]
            assert site.environment("mini").size.cpus >= 1
            assert site.triggers() == []
            assert site.events(last=1)[0].number > 0
            assert site.why("node1").kind == "host"

        await asked(calls, look, Scope.READ)


async def test_job_is_submitted_and_waited_for(calls: Calling) -> None:
    agent = HonestAgent("node1", calls.bench.hub)
    async with agent.working():
        await calls.bench.settle()

        def run(site: Client) -> None:
            job = site.submit("mini", ["true"], label="mine", cpus=1, memory="256M")
            assert job.request.machine.memory == 256 << 20
            assert site.wait(job).state is RequestState.DONE
            assert site.wait("mine").exit_code == 0
            assert [record.request.id for record in site.requests()] == [job.request.id]
            assert site.requests(under_way=True) == []
            with pytest.raises(EncampError) as refused:
                site.cancel(job)
            assert refused.value.code is Code.WRONG_STATE
            with pytest.raises(EncampError, match="not one text"):
                site.submit("mini", "true")

        await asked(calls, run)
    assert len(agent.ran) == 1


async def test_same_in_an_event_loop(calls: Calling) -> None:
    agent = HonestAgent("node1", calls.bench.hub)
    async with agent.working(), await client(calls) as site:
        await calls.bench.settle()
        job = await site.submit("mini", ["true"])
        assert (await site.wait(job)).state is RequestState.DONE
        assert [host.name async for host in site.hosts()] == ["node1"]
        assert [one async for one in site.machines()] == []
        issued = await site.issue("node1", "test.do", {})
        assert (await site.wait_command(issued.commands[0])).state is CommandState.DONE
        assert await site.command_output(issued.commands[0]) == b""
        assert (await site.request(job.request.id)).exit_code == 0


async def test_request_whose_answer_was_lost_is_not_queued_twice(calls: Calling) -> None:
    async with Proxy(calls.server.address).open() as proxy:
        proxy.breaks = 2
        async with AsyncClient(proxy.url, await calls.secret()) as site:
            job = await site.submit("mini", ["true"])
            assert proxy.broken == 2
            assert [record.request.id for record in await site.requests()] == [job.request.id]


async def test_command_whose_answer_was_lost_is_not_issued_again(calls: Calling) -> None:
    async with calls.bench.agent().joined(), Proxy(calls.server.address).open() as proxy:
        proxy.breaks = 1
        async with AsyncClient(proxy.url, await calls.secret()) as site:
            with pytest.raises(EncampError) as lost:
                await site.issue("node1", "test.do")
            assert lost.value.code is Code.UNREACHABLE
            assert len(await site.commands()) == 1


async def test_same_key_is_the_same_request_and_no_other(calls: Calling) -> None:
    async with await client(calls) as site:
        one = await site.submit("mini", ["true"], key="nightly")
        again = await site.submit("mini", ["true"], key="nightly")
        assert again.request.id == one.request.id
        with pytest.raises(EncampError) as refused:
            await site.submit("mini", ["false"], key="nightly")
        assert refused.value.code is Code.WRONG_STATE
        other = await client(calls, "bob")
        async with other:
            assert (await other.submit("mini", key="nightly")).request.id != one.request.id


async def test_events_have_no_gap_when_the_manager_is_restarted(calls: Calling) -> None:
    site = await client(calls, scope=Scope.READ)
    async with Proxy(calls.server.address).open() as proxy:
        site._http.base_url = proxy.url
        numbers: list[int] = []
        async with site, aclosing(site.follow_events(since=0)) as events:
            async for event in events:
                numbers.append(event.number)
                if event.kind is EventKind.MANAGER_STARTED and len(numbers) < 5:
                    await calls.bench.stop()
                    await calls.bench.start()
                    address = calls.server.address.removeprefix("http://")
                    proxy._host, proxy._port = address.split(":")
                elif len(numbers) >= 5:
                    break
                if len(numbers) == 4:
                    calls.manager.recorder.event(EventKind.NOTIFICATION, "One more.")
        assert numbers == list(range(1, len(numbers) + 1))


async def test_what_is_wrong_is_raised_as_the_manager_says_it(calls: Calling) -> None:
    async with await client(calls, scope=Scope.READ) as site:
        for work, code in (
            (site.submit("mini"), Code.NOT_PERMITTED),
            (site.request("none"), Code.USAGE),
            (site.environment("none"), Code.UNKNOWN_ENVIRONMENT),
            (site.machine("none"), Code.UNKNOWN_MACHINE),
        ):
            with pytest.raises(EncampError) as refused:
                await work
            assert refused.value.code is code
            assert refused.value.sentence.endswith(".")


async def test_tokens_are_administered(calls: Calling) -> None:
    async with await client(calls, "root", Scope.ADMINISTER) as site:
        made = await site.create_token("carol", Scope.READ, lifetime=60, label="a test")
        async with AsyncClient(calls.server.address, made.secret) as carol:
            assert (await carol.status()).site == "site"
            assert made.token.id in [token.id for token in await site.tokens()]
            await site.revoke_token(made.token.id)
            with pytest.raises(EncampError) as refused:
                await carol.status()
            assert refused.value.code is Code.NOT_PERMITTED
        assert [entry.action for entry in await site.audit()] == ["token.create", "token.revoke"]


def test_nobody_at_the_address_is_said_so() -> None:
    with (
        Client("http://127.0.0.1:9", "encamp_x_y", patience=0.2) as site,
        pytest.raises(EncampError, match=r"127\.0\.0\.1:9 does not answer") as unreachable,
    ):
        site.status()
    assert unreachable.value.code is Code.UNREACHABLE


def test_token_is_taken_from_where_people_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ENCAMP_TOKEN", "ENCAMP_TOKEN_FILE", "ENCAMP_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(EncampError, match="no token"):
        Client()
    (tmp_path / "token").write_text("encamp_in_file\n")
    monkeypatch.setenv("ENCAMP_TOKEN_FILE", str(tmp_path / "token"))
    with Client() as site:
        assert site._http.headers["authorization"] == "Bearer encamp_in_file"
        assert site._http.base_url == "http://127.0.0.1:7478"


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        (["sh", "a\0b"], {}, "Argument 1 of the command has a zero byte"),
        (["\ud800"], {}, "no text in UTF-8"),
        (["sh"], {"timeout": float("nan")}, "time limit of nan"),
        (["sh"], {"variables": {"A=B": ""}}, "'A=B' cannot name a variable"),
        (["sh"], {"memory": "lots"}, "is not a size"),
    ],
)
def test_what_makes_no_sense_is_not_sent(
    command: list[str], options: requests.RequestOptions, said: str
) -> None:
    with Client("http://127.0.0.1:1", "encamp_x") as site, pytest.raises(EncampError, match=said):
        site.submit("mini", command, **options)


def test_tries_grow_apart_and_end() -> None:
    call = requests.status()
    tries = Tries(call, patience=10.0, now=0.0)
    gone = EncampError(Code.UNREACHABLE, "Gone.", transient=True)
    assert [tries.pause(gone, 1.0, told=False) for _ in range(3)] == [0.1, 0.2, 0.4]
    assert tries.pause(gone, 1.0, told=True, asked=5.0) == 5.0
    with pytest.raises(EncampError):
        tries.pause(gone, 9.9, told=False)
    with pytest.raises(EncampError):
        tries.pause(EncampError(Code.USAGE, "No."), 1.0, told=True)
    changing = Tries(requests.cancel("x"), patience=10.0, now=0.0)
    with pytest.raises(EncampError):
        changing.pause(gone, 1.0, told=False)
    assert changing.pause(gone, 1.0, told=True) == 0.1


def test_command_line_and_package_load_nothing_of_it() -> None:
    script = (
        "import sys, encamp, encamp.cli.main;"
        "encamp.cli.main.application();"
        "print([n for n in sys.modules if n.split('.')[0] in"
        " ('httpx', 'litestar', 'uvicorn', 'prometheus_client')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
