"""Expressions as the rest of the program handles them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import msgspec

from encamp.core.expressions.compiler import Compiler, Shown
from encamp.core.expressions.frame import Run
from encamp.core.expressions.parsing import Source, parse_expression
from encamp.core.expressions.part import (
    NUMBERS,
    WORDS,
    MomentRead,
    Part,
    Read,
    Shape,
    words,
)
from encamp.core.expressions.reading import is_timed
from encamp.core.schema import Schema, Type
from encamp.core.world import Known
from encamp.model.property import Value


@dataclasses.dataclass(slots=True, frozen=True, eq=False)
class Expression:
    """A text that was checked and compiled. Two are never equal, even if their texts are."""

    text: str
    about: str | None
    """The kind of things it is about: it has a value for each of them. None: it has one value."""
    timed: bool
    """Its value depends on the time, so that it is to be looked at on a tick too."""
    momentary: bool
    """It asks what has changed just now: it may be true only at the moment of a change."""
    reads: tuple[str, ...]
    """What it reads, as it is written: `host.load1`, `len(hosts)`."""
    type: Type
    run: Run
    uses: frozenset[Read]
    shown: tuple[Shown, ...]


class Outcome(msgspec.Struct, frozen=True):
    value: Known
    seen: dict[str, Value]
    """What was read and what it was, None if not known; how many things an aggregate left out
    because something about them is not known."""


def compile_expression(
    text: str,
    schema: Schema,
    *,
    about: Collection[str] | None = None,
    wants: Type | None = Type.BOOL,
) -> Expression:
    """`about`: the kinds of things that it may be about; None: any. `wants`: the type of its
    value; None: any. Raises ExpressionError with all mistakes that are found."""
    source = Source(text)
    node = parse_expression(source)
    compiler = Compiler(source, schema, about)
    part = wanted(
        compiler, compiler.truth(node) if wants is Type.BOOL else compiler.value(node), wants
    )
    compiler.raise_any()
    return Expression(
        text=text,
        about=compiler.subject,
        timed=is_timed(part.reads),
        momentary=any(isinstance(read, MomentRead) for read in part.reads),
        reads=tuple(compiler.shown),
        type=part.shape.type,
        run=part.run,
        uses=part.reads,
        shown=tuple(compiler.shown.values()),
    )


ACCEPTED: dict[Type, frozenset[type]] = {
    Type.BOOL: frozenset({bool}),
    Type.INT: frozenset({int}),
    Type.FLOAT: frozenset({int, float}),
    Type.STR: frozenset({str}),
    Type.LIST: frozenset({list, tuple}),
    Type.DICT: frozenset({dict}),
}


def wanted(compiler: Compiler, part: Part, wants: Type | None) -> Part:
    """The part, if it is of the type that is asked for or may turn out to be."""
    kind = part.shape.type
    if part.broken or wants in (None, Type.ANY, kind) or (wants is Type.FLOAT and kind in NUMBERS):
        return part
    assert wants is not None
    if kind is Type.ANY:
        return compiler.checked(part, Shape(wants), ACCEPTED[wants])
    return compiler.mistake(part.node, f"{WORDS[wants]} is needed here, not {words(part.shape)}.")
