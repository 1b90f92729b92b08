"""Pages: all of it, each once, however small the pages are."""

from __future__ import annotations

from contextlib import AsyncExitStack

import httpx
import msgspec
import pytest

from encamp.manager.api import paging
from encamp.manager.api.paging import page_token, place_of
from encamp.model.errors import EncampError
from encamp.model.machine import State
from encamp.model.token import Scope
from tests.manager.api.calling import Calling
from tests.manager.playing import machine


async def listed(caller: httpx.AsyncClient, path: str) -> list[str]:
    """Ids of all pages."""
    found: list[str] = []
    page = ""
    while True:
        answer = await caller.get(f"{path}&page={page}")
        assert answer.status_code == 200, answer.text
        told = answer.json()
        found += [
            entry["name"] if "name" in entry else entry["machine"]["id"] for entry in told["items"]
        ]
        page = told["next"]
        if not page:
            return found


async def test_every_machine_is_on_one_page(
    calls: Calling, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Pieces of pages are put together rightly, whatever their number.
    monkeypatch.setattr(paging, "PIECE", 2)
    async with AsyncExitStack() as held:
        for host in ("node2", "node1", "node10"):
            agent = await held.enter_async_context(calls.bench.agent(host).joined())
            states = (State.RUNNING, State.STOPPED)
            await agent.report(
                *(machine(f"{host}-{number}", states[number % 2]) for number in (3, 1, 2, 0))
            )
        caller = await calls.caller("alice", Scope.READ)
        whole = [f"{host}-{number}" for host in ("node1", "node10", "node2") for number in range(4)]
        for limit in (1, 3, 4, 5, 11, 12, 1000):
            assert await listed(caller, f"/v1/machines?limit={limit}") == whole
            assert await listed(caller, f"/v1/hosts?limit={limit}") == ["node1", "node10", "node2"]
        running = [name for name in whole if name[-1] in "02"]
        assert await listed(caller, "/v1/machines?limit=1&state=running") == running
        assert await listed(caller, "/v1/machines?limit=3&host=node1*") == whole[:8]
        assert await listed(caller, "/v1/machines?limit=3&owner=root") == whole
        assert await listed(caller, "/v1/machines?limit=3&owner=nobody-at-all") == []
        assert await listed(caller, "/v1/machines?limit=3&environment=other") == []
        # A page that begins after something that is gone goes on with what comes next.
        gone = page_token("node1", "node1-1-and-a-half")
        answer = await caller.get(f"/v1/machines?limit=2&page={gone}")
        assert [entry["machine"]["id"] for entry in answer.json()["items"]] == whole[2:4]


def test_place_is_what_was_put_into_a_page_token() -> None:
    assert place_of(page_token("ä", "\0"), 2) == ("ä", "\0")
    assert place_of("", 2) == ("", "")
    wrong = [page_token("one"), page_token("one", "two")[:-3], "%%%", "ä", "a" * 4000]
    for token in wrong:
        with pytest.raises(EncampError, match="not the 'next' of a page"):
            place_of(token, 2)


def test_page_token_of_something_else_is_no_place() -> None:
    import base64

    data = base64.urlsafe_b64encode(msgspec.msgpack.encode([1, 2])).decode()
    with pytest.raises(EncampError):
        place_of(data, 2)
