"""Tokens and the audit log are kept alike by both databases."""

from __future__ import annotations

from functools import partial

import msgspec

from encamp.manager.store import audit, tokens
from encamp.manager.store.store import Store
from encamp.model.audit import AuditEntry, AuditOutcome
from encamp.model.token import Scope, Token
from tests.manager.store.stores import Place

DIGEST = bytes(range(256))[:32]


def token(name: str) -> Token:
    return Token(
        id=name,
        owner="älice",
        scope=Scope.USE,
        label="for\N{SNOWMAN}",
        created=1.5,
        creator="root",
        expires=2.5,
    )


def entry(number: int, who: str = "alice", at: float = 100.0) -> AuditEntry:
    return AuditEntry(number=number, at=at, who=who, through="http", action="request.submit")


async def test_tokens_are_there_after_a_restart_as_they_were(place: Place) -> None:
    async with await place.open() as store:
        for name in ("one", "two", "three"):
            await store.write(partial(tokens.add, token=token(name), digest=DIGEST))
        # What is written again, since nobody knew whether it was, is there once.
        await store.write(partial(tokens.add, token=token("one"), digest=DIGEST))
        await store.write(partial(tokens.remove, ids=["two", "four"]))
    async with await place.open() as store:
        found = await store.read(tokens.read_all)
    assert sorted(found, key=lambda one: one[0].id) == [
        (token("one"), DIGEST),
        (token("three"), DIGEST),
    ]


async def test_entry_is_replaced_by_what_came_of_it(store: Store) -> None:
    assert await store.read(audit.newest) == 0
    first, second, third = entry(1), entry(2, "bob"), entry(3)
    await store.write(partial(audit.write, entries=[first, second]))
    await store.write(partial(audit.write, entries=[third]))
    done = msgspec.structs.replace(first, outcome=AuditOutcome.DONE, made=("r1",))
    await store.write(partial(audit.write, entries=[done]))

    async def read(since: int = 0, last: int | None = None, who: str = "") -> list[AuditEntry]:
        return await store.read(partial(audit.read, since=since, last=last, who=who))

    assert await store.read(audit.newest) == 3
    assert await read() == [done, second, third]
    assert await read(last=2) == [second, third]
    assert await read(since=1, last=1) == [third]
    assert await read(who="alice") == [done, third]
    assert await read(last=0) == []


async def test_old_entries_are_forgotten_with_old_events(store: Store) -> None:
    entries = [entry(number, at=float(number)) for number in range(1, 1202)]
    await store.write(partial(audit.write, entries=entries))
    await store.prune(1200.5)
    found = await store.read(partial(audit.read, since=0, last=None, who=""))
    assert [one.number for one in found] == [1201]
