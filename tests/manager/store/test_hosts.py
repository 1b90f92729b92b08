"""Hosts as they were last known, and small things that survive a restart."""

from __future__ import annotations

import msgspec
import pytest

from encamp.manager.store.store import Store
from encamp.model.command import CommandDefinition, Parameter
from encamp.model.errors import EncampError
from encamp.model.host import Host, Presence
from encamp.model.property import PropertyDefinition, Reading, ValueKind
from tests.manager.store.stores import Place

HOST = Host(
    name="node1",
    groups=("agents", "big"),
    version="1.0",
    properties=(PropertyDefinition(name="load1", command="load", return_type=ValueKind.FLOAT),),
    commands=(CommandDefinition(name="machine.start", parameters=(Parameter("name"),)),),
    readings={"load1": Reading(0.5)},
)


async def test_a_host_is_known_after_a_restart_without_its_readings(place: Place) -> None:
    lost = msgspec.structs.replace(HOST, presence=Presence.LOST, reason="It fell silent.")
    async with await place.open() as store:
        await store.save_host(msgspec.structs.replace(HOST, name="node0"))
        await store.save_host(HOST)
        await store.save_host(lost)
    async with await place.open() as store:
        known = await store.hosts()
    assert [host.name for host in known] == ["node0", "node1"]
    assert known[1] == msgspec.structs.replace(lost, readings={})


async def test_a_forgotten_host_stays_forgotten(place: Place) -> None:
    async with await place.open() as store:
        await store.save_host(HOST)
        await store.forget_host("node1")
        await store.forget_host("never there")
        assert await store.hosts() == []
    async with await place.open() as store:
        assert await store.hosts() == []


async def test_small_things_are_kept(place: Place) -> None:
    async with await place.open() as store:
        assert await store.kept("site") is None
        await store.keep("site", b"one")
        await store.keep("site", b"\0two\xff")
    async with await place.open() as store:
        assert await store.kept("site") == b"\0two\xff"


async def test_the_stores_own_keys_are_not_for_others(store: Store) -> None:
    with pytest.raises(EncampError, match="store's own"):
        await store.keep("store.events", b"1")
