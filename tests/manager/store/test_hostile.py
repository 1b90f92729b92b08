"""Whatever is in a text, a number or a name: it is stored as it is, or refused, on every
database."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest

from encamp.manager.store.store import Store
from encamp.model.command import CommandState
from encamp.model.errors import Code, EncampError
from encamp.model.host import Host
from tests.manager.store.stores import Place, command, event, judged

HALF = "\ud800"
NASTY = [
    "a\0b",
    "'; DROP TABLE commands; --",
    "%(x)s :x ? \\ {}",
    "\N{PILE OF POO}\N{COMBINING ACUTE ACCENT}\u202e",
    "x" * 100_000,
    "",
]


async def test_any_text_comes_back_as_it_was(store: Store) -> None:
    for number, text in enumerate(NASTY):
        id = f"c{number}"
        issued = command(id, text, name=text, issuer=text, arguments={text: [text]}, reason=text)
        await store.add_commands([issued])
        assert await store.command(id) == issued
        assert await store.commands(hosts=[text]) == [issued]
        done = await store.move_command(command(id, state=CommandState.DONE, value={text: text}))
        assert done.value == {text: text}
        happened = await store.add_events([event(text, text, subject=text, facts={text: text})])
        assert await store.events(hosts=[text]) == happened
        await store.add_judged([judged(text, reason=text)])
        assert await store.judged(text, last=1) == [judged(text, reason=text)]
        await store.save_host(Host(name=text))
        assert await store.hosts() == [Host(name=text)]
        await store.forget_host(text)
        assert await store.hosts() == []


async def test_large_values_and_huge_numbers_come_back_as_they_were(store: Store) -> None:
    value = {"text": "x" * (1 << 20), "huge": 2**200, "small": -(2**63), "real": 1e308}
    await store.add_commands([command("c1", arguments=value)])
    done = await store.move_command(
        command("c1", state=CommandState.DONE, value=value, exit_code=2**70)
    )
    assert await store.command("c1") == done
    assert done.arguments == done.value == value
    happened = await store.add_events([event(facts=value)])
    assert await store.events() == happened
    piece = bytes(range(256)) * 4096
    assert await store.add_output("c1", 0, piece) == 1 << 20
    assert await store.output("c1", 0, 1 << 21) == piece


WRONG: list[dict[str, Any]] = [
    {"reason": HALF},
    {"arguments": {"x": HALF}},
    {"issued": math.nan},
    {"timeout": math.inf},
    {"arguments": {"x": "y" * (17 << 20)}},
    {"arguments": {"x": object()}},
]


async def test_a_command_that_cannot_be_written_down_is_refused(store: Store) -> None:
    for wrong in WRONG:
        with pytest.raises(EncampError, match="written down") as caught:
            await store.add_commands([command("fine"), command("c1", **wrong)])
        assert caught.value.code is Code.USAGE
    assert await store.commands() == []
    assert store.trouble == ""


async def test_ids_and_keys_are_decent_texts(store: Store) -> None:
    for name in ("", "a\0b", HALF, "x" * 300):
        with pytest.raises(EncampError, match="cannot be kept") as caught:
            await store.add_commands([command(name)])
        assert caught.value.code is Code.USAGE
        with pytest.raises(EncampError, match="cannot be kept"):
            await store.keep(name, b"x")
        with pytest.raises(EncampError, match="no command"):
            await store.command(name)
        with pytest.raises(EncampError, match="no command"):
            await store.add_output(name, 0, b"x")
        with pytest.raises(EncampError, match="no command"):
            await store.move_command(command(name, state=CommandState.DONE))


async def test_an_event_is_never_lost_for_a_part_that_cannot_be_written(store: Store) -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    added = await store.add_events(
        [
            event(f"half {HALF}", f"node{HALF}", facts={HALF: [HALF]}),
            event("large", facts={"x": "y" * (17 << 20)}),
            event("deep", facts={"x": deep}),
            event("never", at=math.nan),
            event("y" * (17 << 20)),
        ]
    )
    assert [one.number for one in added] == [1, 2, 3, 4, 5]
    found = await store.events()
    assert [one.sentence for one in found] == ["half ?", "large", "deep", "never", "y" * 1000]
    assert [one.facts for one in found] == [{"?": ["?"]}, {}, {}, {}, {}]
    assert found[3].at == 0.0
    assert (await store.events(hosts=[f"node{HALF}"])) == found[:1]
    # Taken apart from the inside out would take as much of the stack as it is deep.
    while deep:
        deep = deep.pop()  # type: ignore[assignment]


async def test_a_damaged_entry_does_not_hide_the_others(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    async with await place.open() as store:
        await store.add_events([event(str(n)) for n in range(3)])
        await store.add_commands([command("c1"), command("c2")])
    place.by_hand("UPDATE events SET document = :bad WHERE number = 2", bad=b"{\xff")
    place.by_hand("UPDATE commands SET document = :bad WHERE id = 'c1'", bad=b"[]")
    async with await place.open() as store:
        with caplog.at_level(logging.WARNING):
            assert [one.number for one in await store.events()] == [1, 3]
            assert [one.id for one in await store.under_way()] == ["c2"]
    assert "Entry 2 of the store is damaged" in caplog.text
    assert "Entry c1 of the store is damaged" in caplog.text
