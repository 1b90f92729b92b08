"""How much each token, and each address without one, may ask for."""

from __future__ import annotations

from pathlib import Path

import msgspec

from encamp.door.peer import network
from encamp.manager.api.limits import MOST_STREAMS, Bucket, Limits, retry_after
from tests.manager.api.calling import SITE, Calling, calling


def test_bucket_is_emptied_at_once_and_fills_slowly() -> None:
    bucket = Bucket(3, 0.5, now=100.0)
    assert [bucket.take(100.0) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert bucket.take(100.0) == 2.0
    assert bucket.take(101.0) == 1.0
    assert bucket.take(102.0) == 0.0
    assert bucket.take(200.0) == 0.0


def test_tokens_and_addresses_are_counted_apart() -> None:
    limits = Limits(rate=0.25, failures=2)
    assert limits.call("one", 0.0) == 0.0
    assert limits.call("one", 0.0) == 4.0
    assert limits.call("other", 0.0) == 0.0
    assert [limits.failed("192.0.2.1", 0.0) for _ in range(3)] == [0.0, 0.0, 30.0]
    assert limits.failed("192.0.2.2", 0.0) == 0.0


def test_whoever_has_many_addresses_is_one_all_the_same() -> None:
    assert network("2001:db8::1") == network("2001:db8::ffff")
    assert network("2001:db8::1") != network("2001:db8:0:1::1")
    assert network("192.0.2.1") != network("192.0.2.2")


def test_addresses_are_not_remembered_without_end() -> None:
    limits = Limits(rate=1, failures=1)
    for number in range(30_000):
        limits.failed(f"host{number}", 0.0)
    assert len(limits._addresses) == 10_000


def test_pause_is_told_in_whole_seconds() -> None:
    assert [retry_after(wait) for wait in (0.01, 1.0, 1.2)] == ["1", "1", "2"]


async def test_too_many_calls_are_told_when_to_come_back(tmp_path: Path) -> None:
    assert SITE.api is not None
    api = msgspec.structs.replace(SITE.api, rate=0.5, failures=2)
    async with calling(tmp_path, msgspec.structs.replace(SITE, api=api)) as calls:
        await _check_pauses(calls)


async def _check_pauses(calls: Calling) -> None:
    caller = await calls.caller()
    answers = [await caller.get("/v1/status") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert 1 <= int(answers[2].headers["retry-after"]) <= 2
    assert answers[2].json()["transient"]
    guessing = await calls.with_header("Bearer encamp_0_0")
    statuses = [(await guessing.get("/v1/status")).status_code for _ in range(3)]
    assert statuses == [401, 401, 429]
    # Whoever guesses from the same address shuts nobody out.
    assert (await (await calls.caller()).get("/v1/status")).status_code == 200


async def test_streams_of_one_token_are_bounded(calls: Calling) -> None:
    for _ in range(MOST_STREAMS):
        assert calls.server.limits.open_stream("one")
    assert not calls.server.limits.open_stream("one")
    assert calls.server.limits.open_stream("other")
    for _ in range(MOST_STREAMS):
        calls.server.limits.close_stream("one")
    assert calls.server.limits.streams == 1
