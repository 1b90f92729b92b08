"""A part of an expression that has been checked: what it is, what it reads, and how to run it."""

from __future__ import annotations

import ast
import dataclasses
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from encamp.core.expressions.frame import Run
from encamp.core.expressions.language import LONGEST_STRING
from encamp.core.schema import Type

if TYPE_CHECKING:
    from encamp.core.expressions.aggregate import Aggregate, Selection
    from encamp.core.expressions.compiler import Compiler


class Shape(NamedTuple):
    """What a part stands for, as far as it is known before it runs."""

    type: Type
    refers: str = ""
    """A text that is the key of a thing of this kind."""
    thing: str = ""
    """A thing of this kind itself, or with `many` a collection of them."""
    many: bool = False


ANY = Shape(Type.ANY)
BOOL = Shape(Type.BOOL)
INT = Shape(Type.INT)
FLOAT = Shape(Type.FLOAT)
STR = Shape(Type.STR)
LIST = Shape(Type.LIST)
DICT = Shape(Type.DICT)

NUMBERS = frozenset({Type.INT, Type.FLOAT})

WORDS = {
    Type.BOOL: "a truth value",
    Type.INT: "a whole number",
    Type.FLOAT: "a number",
    Type.STR: "a text",
    Type.LIST: "a list",
    Type.DICT: "a dict",
    Type.ANY: "a value",
}


def words(shape: Shape) -> str:
    if shape.thing:
        return f"a collection of {shape.thing}s" if shape.many else f"a {shape.thing}"
    return WORDS[shape.type]


OF_PYTHON: dict[type, Type] = {
    bool: Type.BOOL,
    int: Type.INT,
    float: Type.FLOAT,
    str: Type.STR,
    list: Type.LIST,
    tuple: Type.LIST,
    dict: Type.DICT,
}
"""Types of values as they are while an expression runs. Exactly these: no subclass passes."""

PLAIN = frozenset({*OF_PYTHON, type(None)})


def is_plain(value: object) -> bool:
    """May it take part in an expression? It has a type that is known, and if a text, an end."""
    if type(value) is str:
        return len(value) <= LONGEST_STRING
    return type(value) in PLAIN


def words_of(value: object) -> str:
    if type(value) is str and len(value) > LONGEST_STRING:
        return f"a text of more than {LONGEST_STRING:,} characters"
    found = OF_PYTHON.get(type(value))
    return WORDS[found] if found else "nothing"


class Step(NamedTuple):
    kind: str
    fact: str
    """Empty: only whether the thing is there."""


class FactRead(NamedTuple):
    """A fact that is read, and the way to it: `machine.host.load1` is read from the machine in two
    steps."""

    variable: str
    """What the way starts from: the subject, or a loop's variable; empty if from a fixed thing."""
    key: str
    """The key of that fixed thing."""
    steps: tuple[Step, ...]
    type: Type

    @property
    def of_subject(self) -> bool:
        """Is it a fact of the subject itself, without a step to another thing?"""
        return bool(self.variable) and len(self.steps) == 1 and bool(self.steps[0].fact)


class LocalRead(NamedTuple):
    """The variable of a loop over a list."""

    variable: str


class TimeRead(NamedTuple):
    name: str


class MomentRead(NamedTuple):
    """What has just changed."""

    name: str


class AggregateRead(NamedTuple):
    aggregate: Aggregate


Read = FactRead | LocalRead | TimeRead | MomentRead | AggregateRead
NO_READS: frozenset[Read] = frozenset()


@dataclasses.dataclass(slots=True, frozen=True)
class Part:
    node: ast.AST
    shape: Shape
    run: Run
    reads: frozenset[Read] = NO_READS
    constant: bool = False
    value: Any = None
    """If it is constant."""
    path: FactRead | None = None
    """If it is a thing or a fact: the way to it."""
    fact: Step | None = None
    """If it is a fact as it is, or as it was: which."""
    selection: Selection | None = None
    """If it is a collection: of what."""
    broken: bool = False
    """A mistake in it has been told already; what follows from it is not told."""


@dataclasses.dataclass(slots=True, frozen=True)
class Variable:
    """What a loop calls one of those it goes through: a thing, or an element of a list."""

    kind: str = ""


Builder = Callable[["Compiler", ast.Call, list[ast.expr]], Part]
"""Checks a call of a function with these arguments, and makes a part of it."""


_SOURCES: weakref.WeakKeyDictionary[ast.AST, str] = weakref.WeakKeyDictionary()


def source_of(node: ast.AST) -> str:
    """How it was written, or could have been. It takes long the first time, which is why it is not
    asked of every part when an expression is loaded, and is remembered: the reasons for which
    thousands of elements are left out of a loop all have it in them."""
    text = _SOURCES.get(node)
    if text is None:
        text = _SOURCES[node] = _unparsed(node)
    return text


def _unparsed(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{source_of(node.value)}.{node.attr}"
    # Python would write two pairs of brackets, sum((x for x in y)): a name stands in for the loop.
    inside: list[tuple[ast.Call, ast.GeneratorExp]] = []
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and len(call.args) == 1:
            only = call.args[0]
            if isinstance(only, ast.GeneratorExp):
                inside.append((call, only))
    try:
        for place, (call, _) in enumerate(inside):
            call.args[0] = ast.Name(_stand_in(place))
        text = ast.unparse(node)
    finally:
        for call, loop in inside:
            call.args[0] = loop
    for place, (_, loop) in enumerate(inside):
        # A loop inside another is written with that one.
        if _stand_in(place) in text:
            text = text.replace(_stand_in(place), source_of(loop)[1:-1])
    return text


def _stand_in(place: int) -> str:
    """No name has such characters, and in texts Python writes them as escapes."""
    return f"\ue000{place}\ue001"
