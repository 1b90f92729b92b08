"""What agents say is believed no further than it can be checked."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from encamp.bus.messages import CommandNews, Hello, Report
from encamp.manager.taking import (
    LONGEST_TEXT,
    MOST_BYTES,
    MOST_CLAIMS,
    MOST_DEFINITIONS,
    MOST_OWNERS,
    Account,
)
from encamp.model.command import CommandDefinition, CommandState, Parameter
from encamp.model.errors import Code, EncampError
from encamp.model.meeting import Meeting
from encamp.model.property import PropertyDefinition, Reading, ValueKind

NOW = 1_000_000.0


def definition(name: str, kind: ValueKind = ValueKind.INT) -> PropertyDefinition:
    return PropertyDefinition(name=name, command="test", return_type=kind)


def hello(**more: Any) -> Hello:
    plain = Hello(
        instance="one", home="there", version="1", time=NOW, properties=(definition("number"),)
    )
    return msgspec.structs.replace(plain, **more)


def report(account: Account, *, length: int = 100, **more: Any) -> Any:
    return account.reported("node1", Report(instance="one", **more), length)


def test_what_makes_sense_is_taken_as_it_is() -> None:
    account = Account(hello(), NOW)
    joined = account.joined("node1", hello(readings={"number": Reading(3, at=NOW)}), 100)
    assert joined.readings == {"number": Reading(3, at=NOW)}
    assert joined.clock_offset == 0
    assert report(account, readings={"number": Reading(4, at=NOW)}).readings["number"].value == 4


@pytest.mark.parametrize(
    "value", ["text", True, 1.5, None, [1], {"a": 1}, b"bytes", msgspec.msgpack.Ext(1, b"x"), 2**70]
)
def test_a_value_of_another_type_becomes_an_error_that_says_so(value: Any) -> None:
    account = Account(hello(), NOW)
    taken = report(account, readings={"number": Reading(value, at=NOW)}).readings["number"]
    assert taken.value is None
    assert "not int" in taken.error


def test_bytes_in_a_list_and_endless_depth_become_errors() -> None:
    account = Account(hello(properties=(definition("items", ValueKind.LIST),)), NOW)
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    values: list[Any] = [[b"bytes"], deep, [math.inf]]
    for value in values:
        taken = report(account, readings={"items": Reading(value, at=NOW)}).readings["items"]
        assert taken.value is None, value
        assert taken.error


def test_a_property_that_was_never_defined_is_left_out_and_the_others_are_not() -> None:
    readings = {"other": Reading(1, at=NOW), "number": Reading(2, at=NOW)}
    assert report(Account(hello(), NOW), readings=readings).readings == {
        "number": Reading(2, at=NOW)
    }


def test_a_clock_that_is_an_hour_off_is_put_right() -> None:
    account = Account(hello(time=NOW + 3600), NOW)
    joined = account.joined("node1", hello(time=NOW + 3600), 100)
    assert joined.clock_offset == 3600
    taken = report(account, readings={"number": Reading(1, at=NOW + 3605)}).readings["number"]
    assert taken.at == NOW + 5
    news = CommandNews(id="x", state=CommandState.DONE, started=NOW + 3600, ended=NOW + 3610)
    assert account.checked(news).ended == NOW + 10


@pytest.mark.parametrize("time", [math.nan, math.inf, -math.inf, -1.0, 1e300, -1e300])
def test_times_that_are_none_do_no_harm(time: float) -> None:
    account = Account(hello(time=time), NOW)
    assert account.offset == 0
    assert report(account, readings={"number": Reading(1, at=time)}).readings["number"].at == 0
    news = CommandNews(id="a", state=CommandState.DONE, started=time, ended=time)
    assert (account.checked(news).started, account.checked(news).ended) == (0, 0)


def test_one_host_cannot_fill_the_manager_with_readings() -> None:
    names = [f"text{number}" for number in range(40)]
    properties = tuple(definition(name, ValueKind.STR) for name in names)
    account = Account(hello(properties=properties), NOW)
    share = MOST_BYTES // 20
    for name in names[:20]:
        report(account, readings={name: Reading("x")}, length=share)
    taken = report(account, readings={names[20]: Reading("x")}, length=share).readings
    assert taken[names[20]].value is None
    assert "in all" in taken[names[20]].error
    # What replaces something else of its size is welcome still.
    for _ in range(100):
        report(account, readings={names[0]: Reading("x")}, length=share)


@pytest.mark.parametrize(
    "wrong",
    [
        {"properties": tuple(definition(f"p{n}") for n in range(MOST_DEFINITIONS + 1))},
        {"properties": (definition("__class__"),)},
        {"properties": (definition("presence"),)},
        {"properties": (definition("groups", ValueKind.LIST),)},
        {"properties": (definition("a b"),)},
        {"properties": (PropertyDefinition(name="a", command="x" * 30_000),)},
        {"properties": (PropertyDefinition(name="a", command="x", ticks=math.nan),)},
        {"properties": (PropertyDefinition(name="a", command="x", tolerance=math.inf),)},
        {"commands": (CommandDefinition(name="a", timeout=math.nan),)},
        {
            "commands": (
                CommandDefinition(name="a", parameters=(Parameter("p", default=math.nan),)),
            )
        },
        {"commands": (CommandDefinition(name="../../etc"),)},
        {"commands": (CommandDefinition(name="a", help="x" * 30_000),)},
        {"groups": ("a b",)},
        {"groups": ("*",)},
        {"groups": tuple(f"g{n}" for n in range(1000))},
        {"instance": "x" * 1000},
        {"instance": ""},
    ],
)
def test_a_hello_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    said = hello(**wrong)
    with pytest.raises(EncampError) as refused:
        Account(said, NOW).joined("node1", said, 100)
    assert refused.value.code is Code.PROTOCOL
    assert not refused.value.transient


def test_long_texts_are_cut() -> None:
    account = Account(hello(), NOW)
    taken = report(account, readings={"number": Reading(error="x" * 100_000)}).readings["number"]
    assert len(taken.error) == LONGEST_TEXT
    news = CommandNews(id="x", state=CommandState.FAILED, reason="x" * 100_000)
    assert len(account.checked(news).reason) == LONGEST_TEXT


def test_a_command_that_returned_nonsense_keeps_its_state_but_no_value() -> None:
    news = CommandNews(id="x", state=CommandState.DONE, value=b"bytes")  # type: ignore[arg-type]
    checked = Account(hello(), NOW).checked(news)
    assert (checked.state, checked.value) == (CommandState.DONE, None)
    assert "no value" in checked.reason


def test_a_hello_that_was_long_on_its_way_does_not_make_a_clock_seem_to_be_behind() -> None:
    assert Account(hello(time=NOW - 20), NOW).offset == 0
    assert Account(hello(time=NOW - 3600), NOW).offset == -3600
    # Once the agent has measured it, that is believed.
    assert Account(hello(time=NOW - 20, ahead=-12.0), NOW).offset == -12
    assert Account(hello(time=NOW, ahead=math.nan), NOW).offset == 0


MEETING = Meeting(address="node1.example.org", port=7000, fingerprint="ab" * 32)


def test_what_is_said_for_requests_is_taken() -> None:
    said = hello(owners=("alice",), claims=("r1.0.1",), meeting=MEETING)
    account = Account(said, NOW)
    joined = account.joined("node1", said, 100)
    assert (joined.owners, joined.claims, account.meeting) == (("alice",), ("r1.0.1",), MEETING)
    old = Account(hello(), NOW).joined("node1", hello(), 100)
    assert (old.owners, old.claims) == (None, ())


@pytest.mark.parametrize(
    "more",
    [
        {"owners": ("x" * 1000,)},
        {"owners": ("x",) * (MOST_OWNERS + 1)},
        {"claims": ("r1.0.1",) * (MOST_CLAIMS + 1)},
        {"claims": ("no claim",)},
        {"claims": ("r1.0.x",)},
        {"claims": ("x" * 10_000 + ".0.1",)},
        {"meeting": msgspec.structs.replace(MEETING, port=-1)},
        {"meeting": msgspec.structs.replace(MEETING, port=1 << 16)},
        {"meeting": msgspec.structs.replace(MEETING, fingerprint="x")},
        {"meeting": msgspec.structs.replace(MEETING, address="x" * 10_000)},
        {"meeting": msgspec.structs.replace(MEETING, socket="a\nb")},
        {"meeting": msgspec.structs.replace(MEETING, socket="/run/docker.sock")},
    ],
)
def test_nonsense_said_for_requests_is_refused(more: dict[str, Any]) -> None:
    said = hello(**more)
    with pytest.raises(EncampError, match="makes no sense") as caught:
        Account(said, NOW).joined("node1", said, 100)
    assert caught.value.code is Code.PROTOCOL
