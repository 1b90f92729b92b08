"""Events and the triggers' log: numbered, in order, found by what they are about."""

from __future__ import annotations

import asyncio

import pytest

from encamp.core.actions import Judgement
from encamp.manager.store import log as logs
from encamp.manager.store.store import Store
from tests.manager.store.stores import Place, event, judged


async def test_events_count_up_without_a_gap_from_run_to_run(place: Place) -> None:
    for run in range(3):
        async with await place.open() as store:
            numbered = await store.add_events([event(f"{run}.{n}") for n in range(3)])
            assert [one.number for one in numbered] == [run * 3 + n for n in (1, 2, 3)]
    async with await place.open() as store:
        found = await store.events()
    assert [one.number for one in found] == list(range(1, 10))
    assert [one.sentence for one in found[:4]] == ["0.0", "0.1", "0.2", "1.0"]


async def test_numbers_are_not_used_again_after_everything_was_pruned(place: Place) -> None:
    async with await place.open() as store:
        await store.add_events([event(at=1.0) for _ in range(5)])
        await store.prune(100.0)
        assert await store.events() == []
    async with await place.open() as store:
        assert [one.number for one in await store.add_events([event()])] == [6]


async def test_events_of_many_callers_get_numbers_of_their_own(store: Store) -> None:
    answers = await asyncio.gather(
        *(store.add_events([event(f"{n}.{m}") for m in range(3)]) for n in range(100))
    )
    given = {one.number: one for answer in answers for one in answer}
    assert sorted(given) == list(range(1, 301))
    assert await store.events() == [given[number] for number in sorted(given)]


async def test_events_are_chosen_by_number_count_and_host(store: Store) -> None:
    await store.add_events([event(str(n), f"node{n % 3}", facts={"n": n}) for n in range(1, 31)])

    async def numbers(**choice: object) -> list[int]:
        return [one.number for one in await store.events(**choice)]  # type: ignore[arg-type]

    assert await numbers(since=28) == [29, 30]
    assert await numbers(last=3) == [28, 29, 30]
    assert await numbers(since=29, last=3) == [30]
    assert await numbers(hosts=["node1"], last=2) == [25, 28]
    assert await numbers(hosts=["node1", "node0"], since=27) == [28, 30]
    assert await numbers(hosts=["node2", *(f"other{n}" for n in range(3000))], last=2) == [26, 29]
    assert await numbers(since=2**70) == []
    assert await numbers(since=-5, last=0) == []


async def test_more_events_than_fit_into_a_page_or_a_transaction_are_all_there(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "RESERVED", 1000)
    monkeypatch.setattr(logs, "AT_ONCE", 300)
    store = await place.open()
    numbered = await store.add_events([event(str(n)) for n in range(2700)])
    assert store.dropped == 0
    assert [one.number for one in numbered] == list(range(1, 2701))
    assert await store.events() == numbered
    assert await store.events(last=2500) == numbered[-2500:]
    await store.close()


async def test_a_triggers_log_is_its_own(place: Place) -> None:
    entries = [
        judged(f"t{n % 2}", float(n), seen={"host.load1": n}, judgement=Judgement.FALSE)
        for n in range(10)
    ]
    async with await place.open() as store:
        await store.add_judged(entries)
    async with await place.open() as store:
        assert await store.judged() == entries
        assert await store.judged("t1", last=2) == [entries[7], entries[9]]
        assert await store.judged("t9") == []
