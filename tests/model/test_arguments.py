"""Arguments of commands: what is accepted, and what a person types for it."""

from __future__ import annotations

import pytest

from encamp.model.arguments import check_arguments, from_texts, signature
from encamp.model.command import CommandDefinition, Parameter
from encamp.model.errors import Code, EncampError
from encamp.model.property import Value, ValueKind

DEFINITION = CommandDefinition(
    name="test.all",
    parameters=(
        Parameter("text"),
        Parameter("number", ValueKind.INT, False, 3),
        Parameter("share", ValueKind.FLOAT, False, None),
        Parameter("really", ValueKind.BOOL, False, False),
        Parameter("items", ValueKind.LIST, False, None),
        Parameter("table", ValueKind.DICT, False, None),
    ),
)


def test_what_is_left_out_is_filled_in() -> None:
    assert check_arguments(DEFINITION, {"text": "a", "share": 2}) == {
        "text": "a",
        "number": 3,
        "share": 2.0,
        "really": False,
        "items": None,
        "table": None,
    }


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("text", "42", "42"),
        ("text", "", ""),
        ("number", "42", 42),
        ("number", "-7", -7),
        ("share", "0.25", 0.25),
        ("really", "yes", True),
        ("really", "False", False),
        ("items", "a,b,c", ["a", "b", "c"]),
        ("items", "", []),
        ("items", '["a", 1, {"b": null}]', ["a", 1, {"b": None}]),
        ("table", '{"a": [1]}', {"a": [1]}),
    ],
)
def test_texts_become_what_the_parameter_is(name: str, text: str, value: Value) -> None:
    assert from_texts(DEFINITION, {name: text}) == {name: value}


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"number": "many"}, "'number' is to be a whole number, not 'many'."),
        ({"really": "maybe"}, "'really' is to be true or false, not 'maybe'."),
        ({"items": '{"a": 1}'}, 'Write a,b,c or ["a", "b", "c"].'),
        ({"items": "[1,"}, 'Write a,b,c or ["a", "b", "c"].'),
        ({"table": "a=b"}, 'Write {"name": "value"}.'),
        ({"items": "[" * 100_000}, "'items' is to be a list"),
        ({"txt": "a"}, "there is no argument 'txt'. Did you mean 'text'?"),
        ({"x" * 1000: "a"}, "there is no argument 'xxx"),
    ],
)
def test_texts_that_cannot_be_read_are_refused_with_what_to_write(
    texts: dict[str, str], said: str
) -> None:
    with pytest.raises(EncampError) as refused:
        from_texts(DEFINITION, texts)
    assert refused.value.code is Code.USAGE
    assert said in refused.value.sentence
    assert len(refused.value.sentence) < 300


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"text": None},
        {"text": 1},
        {"text": "a", "number": 1.5},
        {"text": "a", "number": True},
        {"text": "a", "number": 1 << 64},
        {"text": "a", "share": float("inf")},
        {"text": "a", "items": ("a",)},
        {"text": "a", "items": [object()]},
        {"text": "a", "table": {1: 2}},
        {"text": "\ud800"},
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict[str, Value]) -> None:
    with pytest.raises(EncampError, match=r"test\.all"):
        check_arguments(DEFINITION, arguments)


def test_a_signature_says_what_is_taken() -> None:
    assert signature(DEFINITION).startswith("text: str, number: int = 3, share: float = null")
    assert signature(CommandDefinition(name="a")) == "nothing"
