"""Whatever is written, loading it ends with an expression or with an ExpressionError; whatever was
loaded, running it ends with a plain value, and reads nothing but facts of the schema."""

from __future__ import annotations

import ast
import itertools
import string
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from encamp.core.expressions import (
    Argument,
    Evaluator,
    Expression,
    ExpressionError,
    Mistake,
    Signature,
    compile_call,
    compile_expression,
)
from encamp.core.expressions.language import CALLABLE, CONSTANTS, TIMES
from encamp.core.expressions.part import PLAIN
from encamp.core.schema import Type
from encamp.core.world import Unknown, World
from tests.core.expressions.site_of_tests import SCHEMA, small_site
from tests.core.expressions.test_escapes import ESCAPES
from tests.core.expressions.test_incremental import TEXTS

FACTS = {fact for kind in SCHEMA.kinds.values() for fact in kind.facts}
NAMES = [
    *CALLABLE,
    *CONSTANTS,
    *TIMES,
    *FACTS,
    *SCHEMA.kinds,
    *(kind.plural for kind in SCHEMA.kinds.values()),
    *("h", "m", "x", "manager", "clients", "__class__", "format", "True", "None"),
]
MARKS = ["(", ")", "[", "]", "{", "}", ".", ",", ":", "'", '"', "f'", "+", "-", "*", "/", "//", "%",
         "==", "!=", "<", ">=", "and", "or", "not", "in", "is", "if", "else", "for", ":=", "**",
         "lambda", "0", "1", "2.5", "1e400", "'a'", "'node1'", "'workers'", "\n", ";", "#", "=",
         "\\", "\x00", "\u00e9", "\U0001d4b6", "!r", "!s"]  # fmt: skip

HURRIED = settings(
    deadline=None, max_examples=500, derandomize=True, suppress_health_check=list(HealthCheck)
)
SIGNATURES = {
    "log": Signature("log", (Argument("text"),)),
    "send": Signature(
        "send",
        (Argument("to", things="host", many=True), Argument("command", Type.STR)),
        chosen_by="command",
        chosen={"a": ()},
    ),
}


class Guarded(dict[str, Any]):
    """Facts that nobody may ask for by another name than a fact's."""

    def get(self, name: str, default: object = None) -> Any:
        assert name in FACTS
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        assert name in FACTS
        return super().__getitem__(name)


def guarded_site() -> World:
    world = small_site()
    for thing in itertools.chain(*(kind.values() for kind in world.things.values())):
        thing.facts = Guarded(thing.facts)
    return world


SITE = guarded_site()
SUBJECTS = {None: None, "host": "node1", "machine": "m1", "command": "c1"}


def assert_plain(value: object, depth: int = 0) -> None:
    assert type(value) in PLAIN or isinstance(value, Unknown)
    if isinstance(value, (list, tuple)) and depth < 20:
        for element in value:
            assert_plain(element, depth + 1)


def survive(text: str) -> None:
    expression: Expression | None = None
    mistakes: list[Mistake] = []
    try:
        expression = compile_expression(text, SCHEMA, wants=None)
    except ExpressionError as error:
        mistakes = error.mistakes
    if expression is None:
        assert mistakes
        assert all(one.line >= 1 and one.column >= 1 and one.sentence for one in mistakes)
    else:
        evaluator = Evaluator(SITE)
        evaluator.add(expression)
        outcome = evaluator.evaluate(expression, SUBJECTS[expression.about], 1e9)
        assert_plain(outcome.value)
        for seen in outcome.seen.values():
            assert_plain(seen)
        evaluator.remove(expression)
    for wrapped in (text, f"log({text})", f"send({text}, 'a')"):
        try:
            calls = compile_call(wrapped, SCHEMA, SIGNATURES)
        except ExpressionError:
            continue
        for call in calls:
            prepared = Evaluator(SITE).prepare(call, SUBJECTS[call.about], 1e9)
            assert_plain(list(prepared.arguments.values()))


@HURRIED
@given(st.text(max_size=200))
@example("\ud800")
@example("\x00")
@example("\x0c1")
@example("\N{BYTE ORDER MARK}1")
@example("1\r2")
@example("'\\N{LATIN SMALL LETTER A}'")
@example("'\\N{no such}'")
@example("0777")
@example("1_000")
@example("1__0")
@example("0x_f")
@example("1if 1else 2")
@example("'a' 'b'")
@example("'a' f'{1}'")
@example("f'{1!r:>{2}}'")
@example("f'{{}}'")
@example("f'{1=}'")
@example("''''''")
@example("u'a'")
@example("rb'a'")
def test_any_text(text: str) -> None:
    survive(text)


@HURRIED
@given(st.text(alphabet=string.printable, max_size=60))
def test_printable_text(text: str) -> None:
    survive(text)


@HURRIED
@given(st.lists(st.sampled_from([*NAMES, *MARKS]), max_size=25), st.sampled_from(["", " "]))
def test_words_of_the_language_in_any_order(words: list[str], between: str) -> None:
    survive(between.join(words))


def _tokens(text: str) -> list[str]:
    found: list[str] = []
    for group, characters in itertools.groupby(text, key=lambda c: c.isalnum() or c == "_"):
        together = "".join(characters)
        found += [together] if group else list(together)
    return found


CORPUS = [_tokens(text) for text in (*TEXTS, *ESCAPES.values()) if len(text) < 200]


@st.composite
def mutated(draw: st.DrawFn) -> str:
    tokens = list(draw(st.sampled_from(CORPUS)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(tokens)))
        what = draw(st.integers(0, 4))
        if what == 0:
            tokens[place:place] = [draw(st.sampled_from([*NAMES, *MARKS]))]
        elif what == 1:
            del tokens[place : place + draw(st.integers(1, 3))]
        elif what == 2:
            tokens[place : place + 1] = [draw(st.sampled_from([*NAMES, *MARKS]))]
        elif what == 3:
            other = draw(st.sampled_from(CORPUS))
            start = draw(st.integers(0, len(other)))
            tokens[place:place] = other[start : start + 8]
        else:
            tokens[place:place] = tokens[place : place + 6] * draw(st.integers(1, 5))
    return "".join(tokens)


@HURRIED
@given(mutated())
def test_what_is_nearly_right(text: str) -> None:
    survive(text)


# Trees of syntax rather than text: all of Python's expressions, also those that nobody would write.

LEAVES = st.one_of(
    st.sampled_from(NAMES).filter(str.isidentifier).map(lambda name: ast.Name(name, ast.Load())),
    st.one_of(st.integers(-5, 10**40), st.floats(), st.text(max_size=5), st.booleans(), st.none())
    .map(lambda value: ast.Constant(value)),
)  # fmt: skip


def _grow(inner: st.SearchStrategy[ast.expr]) -> st.SearchStrategy[ast.expr]:
    several = st.lists(inner, max_size=3)
    name = st.sampled_from(["h", "x", "host"])

    def loop(kind: type[ast.ListComp] | type[ast.GeneratorExp]) -> st.SearchStrategy[ast.expr]:
        return st.builds(
            lambda element, variable, values, ifs: kind(
                element, [ast.comprehension(ast.Name(variable, ast.Store()), values, ifs, 0)]
            ),
            inner, name, inner, several,
        )  # fmt: skip

    return st.one_of(
        st.builds(ast.Attribute, inner, st.sampled_from(sorted(FACTS)), st.just(ast.Load())),
        st.builds(ast.Subscript, inner, inner, st.just(ast.Load())),
        st.builds(
            lambda function, arguments: ast.Call(ast.Name(function, ast.Load()), arguments, []),
            st.sampled_from(sorted(CALLABLE)),
            st.lists(st.one_of(inner, loop(ast.GeneratorExp)), max_size=2),
        ),
        st.builds(
            ast.BinOp, inner,
            st.sampled_from([ast.Add(), ast.Sub(), ast.Mult(), ast.Div(), ast.Mod(), ast.Pow()]),
            inner,
        ),
        st.builds(ast.UnaryOp, st.sampled_from([ast.Not(), ast.USub(), ast.UAdd()]), inner),
        st.builds(
            lambda left, operation, right: ast.Compare(left, [operation], [right]), inner,
            st.sampled_from([ast.Eq(), ast.Lt(), ast.In(), ast.NotIn(), ast.Is()]), inner,
        ),
        st.builds(
            ast.BoolOp, st.sampled_from([ast.And(), ast.Or()]),
            st.lists(inner, min_size=2, max_size=3),
        ),
        st.builds(ast.IfExp, inner, inner, inner),
        st.builds(ast.List, several, st.just(ast.Load())),
        loop(ast.ListComp),
    )  # fmt: skip


@HURRIED
@given(st.recursive(LEAVES, _grow, max_leaves=12))
def test_any_tree_of_syntax(tree: ast.expr) -> None:
    try:
        text = ast.unparse(tree)
    except ValueError:
        return
    survive(text)
