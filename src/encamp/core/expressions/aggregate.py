"""Aggregates as they are written: of which things, and what of them."""

from __future__ import annotations

import ast
import dataclasses
import enum
from collections.abc import Iterable

from encamp.core.expressions.frame import Frame
from encamp.core.expressions.part import (
    BOOL,
    FLOAT,
    INT,
    LIST,
    NUMBERS,
    AggregateRead,
    FactRead,
    Part,
    Read,
    Shape,
    Step,
    words,
)
from encamp.core.schema import Type


class Measure(enum.Enum):
    COUNT = "count"
    SUM = "sum"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    ANY = "any"
    ALL = "all"
    MEMBERS = "members"
    """Their keys."""
    VALUES = "values"
    """One value each, in the order of their keys."""


NUMERIC = frozenset({Measure.SUM, Measure.MEAN, Measure.MIN, Measure.MAX})
LOGICAL = frozenset({Measure.ANY, Measure.ALL})
LISTING = frozenset({Measure.MEMBERS, Measure.VALUES})
CHOOSING = LISTING | {Measure.COUNT}
"""What tells for which things the conditions are true. That they are false for one is an answer,
while a sum knows nothing of what is not in it."""


def unsuited(measure: Measure, shape: Shape) -> str:
    if measure in NUMERIC and shape.type not in NUMBERS | {Type.ANY}:
        return f"{measure.value}() is of numbers, not of {words(shape)}."
    if measure in LOGICAL and shape.type not in (Type.BOOL, Type.ANY):
        return f"{measure.value}() is of what is true or false, not of {words(shape)}."
    return ""


def result_shape(measure: Measure, value: Part | None) -> Shape:
    if measure is Measure.COUNT:
        return INT
    if measure in LOGICAL:
        return BOOL
    if measure in (Measure.VALUES, Measure.MEMBERS):
        return LIST
    if measure is Measure.MEAN or value is None or value.shape.type is Type.ANY:
        return FLOAT
    return Shape(value.shape.type)


@dataclasses.dataclass(slots=True, frozen=True)
class Selection:
    """Some things of a kind. All parts but the outer ones of `pairs` run with the thing in
    question as the subject of their frame."""

    kind: str
    among: tuple[Part, ...] = ()
    """Conditions of the collection that is chosen from: what makes a host one of a group."""
    static: tuple[Part, ...] = ()
    """Conditions that depend on nothing but the thing."""
    timed: tuple[Part, ...] = ()
    """Conditions that depend on the time too, so that they are looked at in every evaluation."""
    pairs: tuple[tuple[Part, Part], ...] = ()
    """What must be equal: something about the thing, something about the subject of the whole
    expression. Things are kept by the former, and found by the latter."""
    words: tuple[str, ...] = ()
    """All of these as text, with one name for the variable."""

    @property
    def lasting(self) -> tuple[Part, ...]:
        """All conditions that depend on nothing but the thing."""
        return (*self.among, *self.static)

    def parts(self) -> Iterable[Part]:
        yield from self.lasting
        yield from self.timed
        for element, _ in self.pairs:
            yield element


@dataclasses.dataclass(slots=True, frozen=True, eq=False)
class Aggregate:
    identity: str
    """The same for all that are kept up to date as one."""
    measure: Measure
    selection: Selection
    value: Part | None
    """What of each thing; None if the thing itself."""
    text: str
    about: str | None
    """The kind of the subject that `pairs` speak of."""
    timed_value: bool
    weight: int
    """Steps that it takes to look at one thing."""
    reads: frozenset[Read]
    """What is read about each thing."""

    @property
    def itself(self) -> FactRead:
        """That a thing is there."""
        return FactRead("_", "", (Step(self.selection.kind, ""),), Type.STR)

    @property
    def timed(self) -> bool:
        return self.timed_value or bool(self.selection.timed)

    def bucket(self, frame: Frame) -> tuple[object, ...]:
        """Which of the kept ones the subject of a frame asks for."""
        return tuple(outer.run(frame) for _, outer in self.selection.pairs)


def identity(
    measure: Measure, selection: Selection, value: str, reads: Iterable[Read], about: str | None
) -> str:
    """Two texts that differ only in the name of a variable are the same; so are their parts only if
    the facts they read are of the same types."""
    types = sorted(
        f"{'.'.join(f'{step.kind}.{step.fact}' for step in read.steps)}:{read.type.value}"
        for read in reads
        if isinstance(read, FactRead)
    )
    return repr((measure.value, selection.kind, about, value, sorted(selection.words), types))


class _Renamed(ast.NodeTransformer):
    def __init__(self, name: str) -> None:
        self.name = name

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if node.id != self.name:
            return node
        return ast.Name("_", node.ctx)


def canonical(node: ast.AST, variable: str) -> str:
    """The text of a part, whatever its variable is called. No expression can call one `_`."""
    copy = ast.parse(ast.unparse(node), mode="eval")
    return ast.unparse(_Renamed(variable).visit(copy))


def aggregate_part(node: ast.AST, aggregate: Aggregate, shape: Shape) -> Part:
    reads: frozenset[Read] = frozenset({AggregateRead(aggregate)})
    for _, outer in aggregate.selection.pairs:
        reads |= outer.reads

    def run(frame: Frame) -> object:
        return frame.lookup(aggregate, frame)

    return Part(node, shape, run, reads)
