"""Where the language and Python can both say what an expression comes to, they say the same."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from encamp.core.expressions import (
    Evaluator,
    Expression,
    ExpressionError,
    Mistake,
    compile_expression,
)
from encamp.core.expressions.language import LARGEST_INT
from encamp.core.world import Unknown, World
from tests.core.expressions.site_of_tests import SCHEMA

PLENTY = settings(
    deadline=None, max_examples=250, derandomize=True, suppress_health_check=list(HealthCheck)
)

INTS = st.one_of(st.integers(-20, 20), st.integers(-(1 << 70), 1 << 70))
FLOATS = st.floats(-1e6, 1e6, allow_nan=False)
TEXTS = st.text("abAB .,", max_size=6)

RELATIONS = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
ARITHMETIC = st.sampled_from(["+", "-", "*", "/", "//", "%"])
FORMATS = st.sampled_from(["", ",", ">30", "05d", ".2f", "+.1e", "<8", "^9,.3f", ".1%", "g"])

Texts = st.SearchStrategy[str]


class Layer(NamedTuple):
    """Texts of expressions of each type, up to some depth."""

    numbers: Texts
    texts: Texts
    truths: Texts


def leaves() -> Layer:
    return Layer(
        st.one_of(
            INTS.map(repr), FLOATS.map(repr), st.sampled_from(["host.memory_free", "host.load1"])
        ),
        st.one_of(TEXTS.map(repr), st.just("host.name")),
        st.sampled_from(["True", "False", "host.swapping"]),
    )


def deeper(under: Layer) -> Layer:
    numbers, texts, truths = under
    return Layer(
        st.one_of(
            numbers,
            st.builds("({} {} {})".format, numbers, ARITHMETIC, numbers),
            st.builds("({} {} {})".format, numbers, ARITHMETIC, numbers),
            st.builds("(-{})".format, numbers),
            st.builds("{}({})".format, st.sampled_from(["abs", "int", "round"]), numbers),
            st.builds("{}({}, {})".format, st.sampled_from(["min", "max"]), numbers, numbers),
            st.builds("({} if {} else {})".format, numbers, truths, numbers),
            st.builds("len({})".format, texts),
        ),
        st.one_of(
            texts,
            st.builds("({} + {})".format, texts, texts),
            st.builds("{}.{}()".format, texts, st.sampled_from(["lower", "upper", "strip"])),
            st.builds("str({})".format, numbers),
            st.builds("f'{{({}):{}}}'".format, INTS, FORMATS),
            st.builds("','.join({}.split())".format, texts),
        ),
        st.one_of(
            truths,
            st.builds("({} {} {})".format, numbers, RELATIONS, numbers),
            st.builds("({} {} {} {} {})".format, numbers, RELATIONS, numbers, RELATIONS, numbers),
            st.builds("({} {} {})".format, texts, RELATIONS, texts),
            st.builds("({} in {})".format, texts, texts),
            st.builds("({} not in [{}, {}])".format, numbers, numbers, numbers),
            st.builds("({} and {})".format, truths, truths),
            st.builds("({} or {} or {})".format, truths, truths, truths),
            st.builds("(not {})".format, truths),
            st.builds("{}.startswith({})".format, texts, texts),
            st.builds("{}([{}, {}])".format, st.sampled_from(["any", "all"]), truths, truths),
            st.builds(
                "any(x > {} for x in [{}, {}] if {})".format, numbers, numbers, numbers, truths
            ),
        ),
    )


LAYER = deeper(deeper(deeper(leaves())))


class Host:
    """The same facts, for Python."""

    name = "Ab a"
    load1 = 2.5
    memory_free = 7
    swapping = True


def world() -> World:
    made = World(SCHEMA)
    made.put(
        "host",
        "h",
        {"name": "Ab a", "load1": 2.5, "memory_free": 7, "swapping": True},
    )
    return made


WORLD = world()


def of_python(text: str) -> Any:
    """The test's own text, never anybody else's."""
    return eval(text, {"host": Host})


def compare(text: str) -> None:
    try:
        expected = of_python(text)
    except (ArithmeticError, ValueError):
        expected = None
    mistakes: list[Mistake] = []
    expression: Expression | None = None
    try:
        expression = compile_expression(text, SCHEMA, wants=None)
    except ExpressionError as error:
        mistakes = error.mistakes
    if expression is None:
        assert mistakes
        # What is constant is worked out when it is loaded, and must have a value then.
        assert all("this has no value" in one.sentence for one in mistakes), text
        return
    found = Evaluator(WORLD).value(expression, "h", 0.0)
    if isinstance(found, Unknown):
        # A part of it may be too large for us.
        assert "too large" in found.reason or expected is None, text
        return
    assert expected is not None, text
    if type(expected) is int and type(found) is int:
        assert abs(found) <= LARGEST_INT
    if isinstance(expected, float) and math.isnan(expected):
        assert isinstance(found, float)
        assert math.isnan(found)
        return
    assert type(found) is type(expected), text
    assert found == expected, text


@PLENTY
@given(LAYER.numbers)
def test_numbers(text: str) -> None:
    compare(text)


@PLENTY
@given(LAYER.truths)
def test_truths(text: str) -> None:
    compare(text)


@PLENTY
@given(LAYER.texts)
def test_texts(text: str) -> None:
    compare(text)
