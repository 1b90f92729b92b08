"""What a plug-in returned, looked at: never more of it than may be large."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encamp.agent.properties.checking import checked
from encamp.agent.properties.plugin import NoValueError
from encamp.model.property import LARGEST_VALUE, ValueKind, is_value


def refused(value: Any, kind: ValueKind) -> str:
    with pytest.raises(NoValueError) as caught:
        checked(value, kind)
    return str(caught.value)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("kind", "value", "error"),
    [
        (ValueKind.LIST, [1.0, float("nan")], "returned nan, which is no number"),
        (ValueKind.LIST, (1, 2), "returned tuple, not list"),
        (ValueKind.LIST, [{1: 2}], "returned a dictionary with int 1 as a name"),
        (ValueKind.DICT, {"a": {3}}, "with set in it, which JSON cannot say"),
        (ValueKind.LIST, [b"x"], "with bytes in it, which JSON cannot say"),
        (ValueKind.LIST, [1 << 64], "a whole number of 65 bits"),
        (ValueKind.FLOAT, 10**400, "a whole number of 1329 bits"),
        (ValueKind.STR, "\ud800", "which is no Unicode text"),
        (ValueKind.STR, 10**5000, "returned int, not str"),
        (ValueKind.INT, "y" * 10**6, f"returned str '{'y' * 40}...', not int"),
    ],
    ids=lambda given: given.value if isinstance(given, ValueKind) else "",
)
def test_values_that_cannot_be_told_are_named(kind: ValueKind, value: Any, error: str) -> None:
    assert error in refused(value, kind)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (ValueKind.STR, "x" * (LARGEST_VALUE + 1)),
        (ValueKind.STR, "é" * LARGEST_VALUE),
        (ValueKind.LIST, [0] * (LARGEST_VALUE + 1)),
        (ValueKind.LIST, ["x" * LARGEST_VALUE, 1]),
        (ValueKind.DICT, {"x" * LARGEST_VALUE: 1}),
        (ValueKind.DICT, {"a": ["é" * LARGEST_VALUE]}),
        (ValueKind.LIST, [[[0.5] * 1000] * 1000]),
    ],
    ids=lambda given: given.value if isinstance(given, ValueKind) else "",
)
def test_what_is_too_large_is_refused_with_the_bound(kind: ValueKind, value: Any) -> None:
    assert f"a property has at most {LARGEST_VALUE:,}" in refused(value, kind)


def test_what_is_too_deep_is_refused() -> None:
    assert checked(nested(20), ValueKind.LIST) == nested(20)
    assert "levels deep" in refused(nested(100_000), ValueKind.LIST)


def test_list_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    assert "levels deep" in refused(value, ValueKind.LIST)


def test_whole_number_is_good_enough_for_a_float() -> None:
    value = checked(3, ValueKind.FLOAT)
    assert (value, type(value)) == (3.0, float)


def test_what_the_plugin_does_to_its_list_later_changes_nothing() -> None:
    mine = [{"a": [1]}]
    value = checked(mine, ValueKind.LIST)
    mine[0]["a"].append(2)
    assert value == [{"a": [1]}]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.lists(JSON))
def test_whatever_is_accepted_can_be_told(value: list[Any]) -> None:
    try:
        found = checked(value, ValueKind.LIST)
    except NoValueError:
        assert not is_value(value)
    else:
        assert is_value(found)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(found)) == value
