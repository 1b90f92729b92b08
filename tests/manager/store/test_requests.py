"""Requests are remembered as far as they have come, and found by whoever they belong to."""

from __future__ import annotations

import pytest

from encamp.manager.store import requests
from encamp.manager.store.store import Store
from encamp.model.errors import Code, EncampError
from encamp.model.job import Command, Copy, Job
from encamp.model.request import (
    REQUEST_OVER,
    Cause,
    Part,
    PartState,
    Reason,
    RequestRecord,
    RequestState,
    Together,
)
from tests.manager.store.stores import Place, request


async def ids(store: Store) -> list[str]:
    return [record.request.id async for record in store.requests_under_way()]


async def test_requests_are_there_after_a_restart_as_they_were(place: Place) -> None:
    machine = request("r1").request.machine
    job = Job(machine, Command(("true", "\N{SNOWMAN}")), inputs=(Copy("a", "b"),), timeout=1.5)
    asked = request(
        "r1",
        job=job,
        groups=("staff",),
        count=2,
        together=Together.APART,
        near=("db",),
        requirements="load1 < 3",
        rank="pack",
    )
    further = RequestRecord(
        request=asked.request,
        state=RequestState.STARTING,
        reason=Reason(cause=Cause.IMAGE, sentence="it is copied", since=5.0, next="soon"),
        changed=7.0,
        attempt=3,
        parts=(
            Part(number=0, host="node1", state=PartState.RUNNING, machine="m", began=True),
            Part(number=1, host="node2", exit_code=7, failure="x"),
        ),
        exit_code=7,
        to_stop=True,
    )
    async with await place.open() as store:
        await store.add_request(asked)
        await store.add_request(request("r2"))
        await store.write_requests([further])
    async with await place.open() as store:
        assert await store.request("r1") == further
        assert await ids(store) == ["r1", "r2"]
        await store.add_request(request("r0"))
        assert [record.request.id for record in await store.requests()] == ["r0", "r2", "r1"]


async def test_a_request_is_added_once(store: Store) -> None:
    await store.add_request(request("r1"))
    await store.write_requests([request("r1", state=RequestState.DONE, ended=5.0)])
    await store.add_request(request("r1"))
    assert (await store.request("r1")).state is RequestState.DONE
    assert len(await store.requests()) == 1


async def test_those_that_are_over_are_not_under_way(store: Store) -> None:
    for state in RequestState:
        await store.add_request(request(state.value))
        await store.write_requests([request(state.value, state=state, changed=1.0)])
    expected = [state.value for state in RequestState if state not in REQUEST_OVER]
    assert await ids(store) == expected
    assert [record.request.id async for record in store.lost_requests()] == ["lost"]


async def test_what_is_not_known_is_not_written(store: Store) -> None:
    await store.write_requests([request("r1", state=RequestState.DONE)])
    assert await store.requests() == []


async def test_a_request_is_found_by_the_beginning_of_its_id_or_its_label(store: Store) -> None:
    jobs = {"abc1": "", "abc2": "train", "abc3": "train", "d": "abc", "e1f2": "", "f3": "e1"}
    for name, label in jobs.items():
        await store.add_request(request(name, label=label))
    found = {
        asked: (await store.request(asked)).request.id
        for asked in ("abc1", "abc2", "d", "train", "abc", "e1", "e")
    }
    # That an id begins like a label says nothing about which of the two is meant: the label is.
    assert found == {
        "abc1": "abc1",
        "abc2": "abc2",
        "d": "d",
        "train": "abc3",
        "abc": "d",
        "e1": "f3",
        "e": "e1f2",
    }
    for asked, said in {"ab": "Several jobs", "x": "no job 'x'", "": "no job"}.items():
        with pytest.raises(EncampError, match=said) as caught:
            await store.request(asked)
        assert caught.value.code is Code.USAGE


async def test_one_owner_sees_none_of_the_others(store: Store) -> None:
    for name, owner in (("abc1", "alice"), ("abc2", "bob"), ("abc3", "alice")):
        await store.add_request(request(name, owner=owner, label="same"))
    assert (await store.request("abc", "bob")).request.id == "abc2"
    assert (await store.request("same", "bob")).request.id == "abc2"
    with pytest.raises(EncampError, match="no job 'abc2'"):
        await store.request("abc2", "alice")
    # Whoever may see all of them is asked which.
    with pytest.raises(EncampError, match="'same': abc3 of alice and abc2 of bob") as caught:
        await store.request("same")
    assert caught.value.code is Code.USAGE
    alices = await store.requests("alice")
    assert [record.request.id for record in alices] == ["abc3", "abc1"]
    assert [record.request.id for record in await store.requests("alice", 1)] == ["abc3"]


async def test_long_lists_come_whole_and_in_order(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "PAGE", 7)
    monkeypatch.setattr("encamp.manager.store.request_records.PAGE", 5)
    names = [f"r{number:03}" for number in range(40)]
    for name in names:
        await store.add_request(request(name))
    assert await ids(store) == names
    latest = [record.request.id for record in await store.requests(last=33)]
    assert latest == names[::-1][:33]


async def test_what_was_over_long_ago_is_forgotten(store: Store) -> None:
    for name, state, ended in (
        ("old", RequestState.DONE, 10.0),
        ("new", RequestState.FAILED, 100.0),
        ("waits", RequestState.WAITING, 0.0),
    ):
        await store.add_request(request(name))
        await store.write_requests([request(name, state=state, ended=ended)])
    await store.prune(50.0)
    assert [record.request.id for record in await store.requests()] == ["waits", "new"]
