"""A store that was put back from a backup, as its manager meets it."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from encamp.door.questions import (
    AskEvents,
    AskStatus,
    AskTokens,
    AskWhy,
    CreateToken,
    EndRequest,
    GoOn,
    RevokeToken,
)
from encamp.model.errors import Code, EncampError
from encamp.model.event import EventKind
from encamp.model.request import Cause, RequestRecord, RequestState
from encamp.model.site import Api, Site
from encamp.model.token import Scope
from tests.manager.playing import ALICE, ROOT, Bench, HonestAgent, managed, until


def copy(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
        one.backup(other)


class Lab:
    """A site whose jobs waited when the backup was made, and have run since."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.store = bench.path / "manager.sqlite"
        self.backup = bench.path / "backup.sqlite"
        self.agent = HonestAgent("node1", bench.hub)
        self.jobs: list[RequestRecord] = []
        self.secret = ""

    async def run_since_the_backup(self) -> None:
        """As it was seen: nobody took over in between, so the epoch says nothing."""
        bench = self.bench
        # The host did something before, too.
        async with self.agent.joined():
            await bench.settle()
            done = await bench.submit()
            await bench.until(done, RequestState.DONE)
        self.jobs = [await bench.submit() for _ in range(3)]
        [made] = await bench.answers(CreateToken(lifetime=3600.0, scope=Scope.USE), ROOT)
        self.secret = made.secret
        copy(self.store, self.backup)
        await bench.answers(RevokeToken(id=made.token.id), ROOT)
        async with self.agent.joined():
            for job in self.jobs:
                await bench.until(job, RequestState.DONE)
        assert len(self.agent.ran) == 4

    async def put_back(self) -> None:
        await self.bench.stop()
        copy(self.backup, self.store)
        await self.bench.start()

    async def states(self) -> set[RequestState]:
        return {(await self.bench.record(job)).state for job in self.jobs}

    async def notice(self) -> str:
        await until(lambda: self.bench.manager.restoration.sentence)
        [status] = await self.bench.answers(AskStatus(), ROOT)
        return str(status.restored)

    async def called(self, path: str) -> httpx.Response:
        api = self.bench.manager.api
        assert api is not None
        headers = {"Authorization": f"Bearer {self.secret}"}
        async with httpx.AsyncClient(base_url=api.address, headers=headers) as http:
            return await http.get(path)


@pytest.fixture
async def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lab]:
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(tmp_path / "etc"))
    monkeypatch.setattr("encamp.manager.dispatching.SWEEP", 0.05)
    async with managed(tmp_path / "home", Site(api=Api(listen="127.0.0.1:0"))) as bench:
        lab = Lab(bench)
        await lab.run_since_the_backup()
        yield lab


async def test_nothing_that_waited_in_a_backup_is_begun_until_an_administrator_says_so(
    lab: Lab,
) -> None:
    await lab.put_back()
    async with lab.agent.joined():
        assert "put back from a backup" in await lab.notice()
        ready = await lab.called("/health/ready")
        assert ready.status_code == 503
        assert "put back" in ready.text
        new = await lab.bench.submit()
        [why] = await lab.bench.answers(AskWhy(id=new.request.id))
        assert "put back" in why.reason.sentence
        assert "site restored" in why.reason.next
        brief = await lab.bench.submit(wait_at_most=0.1)
        withdrawn = await lab.bench.until(brief, RequestState.CANCELLED)
        assert withdrawn.reason.cause is Cause.NOT_BEGUN
        assert "stands still" in withdrawn.reason.sentence
        # Whoever follows is told what it waits for.
        assert "stands still" in (await lab.bench.record(new)).reason.sentence
        # So does one that is started anew, though the host has heard of the former since.
        await lab.bench.stop()
        await lab.bench.start()
        assert "put back" in await lab.notice()
        assert await lab.states() == {RequestState.WAITING}
        assert not lab.bench.manager.core.settled
        with pytest.raises(EncampError) as caught:
            await lab.bench.answers(GoOn(cancel_waiting=True), ALICE)
        assert caught.value.code is Code.NOT_PERMITTED
        [done] = await lab.bench.answers(GoOn(cancel_waiting=True), ROOT)
        assert (done.waiting, await lab.states()) == (4, {RequestState.CANCELLED})
        assert len(lab.agent.ran) == 4
        # What comes then is begun as ever, also under the next manager.
        await lab.bench.until(await lab.bench.submit(), RequestState.DONE)
        await lab.bench.stop()
        await lab.bench.start()
        await lab.agent.say_hello()
        await lab.bench.until(await lab.bench.submit(), RequestState.DONE)
    kinds = [one.kind for one in await lab.bench.answers(AskEvents(), ROOT)]
    assert kinds.count(EventKind.STORE_RESTORED) == 3


async def test_what_waited_in_a_backup_is_run_if_an_administrator_keeps_it(lab: Lab) -> None:
    await lab.put_back()
    async with lab.agent.joined():
        await lab.notice()
        lab.agent.ran.clear()  # Of what it remembers, it tells how it ended.
        # Its owner can do without it.
        await lab.bench.answers(EndRequest(id=lab.jobs[0].request.id), ROOT)
        await lab.bench.answers(GoOn(cancel_waiting=False), ROOT)
        for job in lab.jobs[1:]:
            await lab.bench.until(job, RequestState.DONE)


async def test_a_token_that_was_revoked_since_the_backup_is_worth_nothing(lab: Lab) -> None:
    assert (await lab.called("/v1/status")).status_code == 401
    await lab.put_back()
    async with lab.agent.joined():
        await lab.notice()
        refused = await lab.called("/v1/status")
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "10")
        await lab.bench.answers(GoOn(cancel_waiting=True), ROOT)
        assert (await lab.called("/v1/status")).status_code == 401
        assert await lab.bench.answers(AskTokens(), ROOT) == []


async def test_tokens_are_kept_if_an_administrator_says_so(lab: Lab) -> None:
    await lab.put_back()
    async with lab.agent.joined():
        await lab.notice()
        await lab.bench.answers(GoOn(cancel_waiting=True, keep_tokens=True), ROOT)
        assert (await lab.called("/v1/status")).status_code == 200


async def test_a_host_that_ran_none_of_it_knows_as_well(lab: Lab) -> None:
    """It is told now and then how far the store has come."""
    async with lab.agent.joined(), lab.bench.agent("node2").joined() as idle:
        await lab.bench.until(await lab.bench.submit(requirements="host.name == 'node1'"), *DONE)
        await until(lambda: "written" in idle.hello)
    await lab.put_back()
    async with idle.joined():
        assert "node2" in await lab.notice()


async def test_a_host_that_comes_later_stops_what_follows(lab: Lab) -> None:
    await lab.put_back()
    await until(lambda: lab.bench.manager.core.settled)
    async with lab.agent.joined():
        await lab.notice()
        assert not lab.bench.manager.core.settled
        assert await lab.states() == {RequestState.WAITING}


async def test_a_store_in_which_old_commands_are_forgotten_is_not_taken_for_an_older_one(
    lab: Lab,
) -> None:
    await lab.bench.manager.store.prune(float("inf"))
    await lab.bench.stop()
    await lab.bench.start()
    async with lab.agent.joined():
        await lab.bench.until(await lab.bench.submit(), RequestState.DONE)
        assert lab.bench.manager.restoration.sentence == ""


DONE = (RequestState.DONE,)
