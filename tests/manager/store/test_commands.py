"""Commands are remembered, move forwards only, and their output is not cut."""

from __future__ import annotations

import asyncio
import itertools

import msgspec
import pytest

from encamp.manager.store import commands
from encamp.manager.store.store import Store
from encamp.model.command import COMMAND_TRANSITIONS, CommandState
from encamp.model.errors import Code, EncampError
from tests.manager.store.stores import Place, command, event


async def test_commands_are_there_after_a_restart(place: Place) -> None:
    issued = command("c1", arguments={"name": "box", "sizes": [1, 2.5, None, {"a": True}]})
    async with await place.open() as store:
        await store.add_commands([issued, command("c2", "node2")])
    async with await place.open() as store:
        assert await store.command("c1") == issued
        assert [record.id for record in await store.under_way()] == ["c1", "c2"]


async def test_a_command_is_found_by_the_beginning_of_its_id(store: Store) -> None:
    await store.add_commands([command(name) for name in ("abc1", "abc2", "b", "bc")])
    assert (await store.command("abc1")).id == "abc1"
    assert (await store.command("b")).id == "b"
    for prefix, said in {"abc": "Several", "x": "no command", "": "no command"}.items():
        with pytest.raises(EncampError, match=said) as caught:
            await store.command(prefix)
        assert caught.value.code is Code.USAGE


async def test_of_one_issuer_the_others_are_not_there(store: Store) -> None:
    others = [command(f"a{number:03}", issuer="bob") for number in range(250)]
    await store.add_commands([*others, command("a999", issuer="alice"), command("b", issuer="bob")])
    assert (await store.command("a", "alice")).id == "a999"
    for hidden in ("a000", "a1", "b"):
        with pytest.raises(EncampError, match=f"There is no command '{hidden}'"):
            await store.command(hidden, "alice")
    assert (await store.command("a000", "bob")).id == "a000"


async def test_the_latest_commands_come_first_and_of_chosen_hosts(store: Store) -> None:
    await store.add_commands([command(f"c{n}", f"node{n % 3}") for n in range(30)])
    await store.add_commands([command("new", "node1")])
    assert [record.id for record in await store.commands(last=2)] == ["new", "c29"]
    chosen = await store.commands(hosts=["node1", "nowhere"], last=3)
    assert [record.id for record in chosen] == ["new", "c28", "c25"]
    many = ["node2", *(f"other{n}" for n in range(5000))]
    assert [record.id for record in await store.commands(hosts=many, last=2)] == ["c29", "c26"]
    assert await store.commands(last=0) == []


async def test_a_command_moves_only_as_the_table_of_states_says(store: Store) -> None:
    for former, new in itertools.product(CommandState, CommandState):
        name = f"from {former.value} to {new.value}"
        await store.add_commands([command(name, state=former, reason="former")])
        moved = await store.move_command(command(name, state=new, reason="new"))
        updated = new is former and former not in commands.FINAL
        allowed = new in COMMAND_TRANSITIONS[former] or updated
        assert (moved.state, moved.reason) == ((new, "new") if allowed else (former, "former"))
        assert await store.command(name) == moved


async def test_a_move_does_not_change_what_the_command_is(store: Store) -> None:
    issued = command("c1", arguments={"name": "box"})
    await store.add_commands([issued])
    await store.add_output("c1", 0, b"hello")
    told = command(
        "c1", "elsewhere", state=CommandState.DONE, name="other", issuer="eve", value=[1], ended=9.0
    )
    expected = msgspec.structs.replace(
        issued, state=CommandState.DONE, value=[1], ended=9.0, output=5
    )
    assert await store.move_command(told) == expected
    assert await store.under_way() == []
    with pytest.raises(EncampError, match="no command 'c9'"):
        await store.move_command(command("c9"))


async def test_a_command_is_added_once(store: Store) -> None:
    await store.add_commands([command("c1")])
    await store.move_command(command("c1", state=CommandState.DONE))
    await store.add_commands([command("c1"), command("c2")])
    assert [(record.id, record.state) for record in await store.commands()] == [
        ("c2", CommandState.WAITING),
        ("c1", CommandState.DONE),
    ]


async def test_output_comes_back_whole_whatever_arrives_twice(store: Store) -> None:
    await store.add_commands([command("c1")])
    assert await store.add_output("c1", 0, b"hello ") == 6
    assert await store.add_output("c1", 0, b"hello ") == 6
    assert await store.add_output("c1", 3, b"lo wor") == 9
    assert await store.add_output("c1", 9, b"") == 9
    assert await store.add_output("c1", 9, b"ld\0\xff") == 13
    assert await store.output("c1", 0, 100) == b"hello world\0\xff"
    assert await store.output("c1", 4, 4) == b"o wo"
    assert await store.output("c1", 50, 4) == b""
    assert (await store.command("c1")).output == 13


@pytest.mark.parametrize("offset", [6, 2**70, -1])
async def test_a_gap_in_the_output_is_refused(store: Store, offset: int) -> None:
    await store.add_commands([command("c1")])
    await store.add_output("c1", 0, b"hello")
    with pytest.raises(EncampError, match="5 bytes of it are here") as caught:
        await store.add_output("c1", offset, b"x")
    assert caught.value.code is Code.WRONG_STATE
    assert await store.output("c1", 0, 100) == b"hello"


async def test_output_is_bounded_and_still_counted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "LARGEST_OUTPUT", 1000)
    monkeypatch.setattr(commands, "LARGEST_PIECE", 64)
    await store.add_commands([command("c1")])
    data = bytes(n % 251 for n in range(1500))
    assert await store.add_output("c1", 0, data[:700]) == 700
    assert await store.add_output("c1", 600, data[600:1400]) == 1400
    assert await store.add_output("c1", 1400, data[1400:]) == 1500
    assert await store.output("c1", 0, 5000) == data[:1000]
    assert await store.output("c1", 100, 500) == data[100:600]
    assert (await store.command("c1")).output == 1500


async def test_output_of_a_command_nobody_issued_is_refused(store: Store) -> None:
    with pytest.raises(EncampError, match="no command"):
        await store.add_output("c1", 0, b"x")
    with pytest.raises(EncampError, match="no command"):
        await store.output("c1", 0, 1)


async def test_one_refusal_among_many_writes_spoils_none_of_them(store: Store) -> None:
    await store.add_commands([command("c1")])
    results = await asyncio.gather(
        *(store.add_commands([command(f"d{n}")]) for n in range(20)),
        store.add_output("nobody", 0, b"x"),
        store.add_output("c1", 7, b"x"),
        store.add_output("c1", 0, b"x"),
        return_exceptions=True,
    )
    assert [type(result) for result in results[20:]] == [EncampError, EncampError, int]
    assert len(await store.commands()) == 21


async def test_a_mistake_in_one_write_spoils_none_of_the_others(store: Store) -> None:
    """Here the database refuses it, there the work itself breaks."""
    refused = store._worker.write(lambda connection: connection.exec_driver_sql("NONSENSE"))
    broken = store._worker.write(lambda connection: 1 / 0)
    results = await asyncio.gather(
        store.add_commands([command("c1")]),
        refused,
        store.add_commands([command("c2")]),
        broken,
        store.add_events([event()]),
        return_exceptions=True,
    )
    for number in (1, 3):
        fault = results[number]
        assert isinstance(fault, EncampError)
        assert fault.code is Code.INTERNAL
    assert len(await store.commands()) == 2
    assert len(await store.events()) == 1
    assert store.trouble == ""
