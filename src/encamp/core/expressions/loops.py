"""Loops: over collections of things, which are kept up to date, and over lists, which are gone
through when they are asked about."""

from __future__ import annotations

import ast
import dataclasses
from typing import TYPE_CHECKING

from encamp.core.expressions.aggregate import (
    Aggregate,
    Measure,
    Selection,
    aggregate_part,
    canonical,
    identity,
    result_shape,
    unsuited,
)
from encamp.core.expressions.lists import Comprehension, Passage, of_list, over_list, passage
from encamp.core.expressions.part import (
    NO_READS,
    FactRead,
    LocalRead,
    MomentRead,
    Part,
    Shape,
    TimeRead,
    Variable,
    source_of,
    words,
)
from encamp.core.schema import Type

if TYPE_CHECKING:
    from encamp.core.expressions.compiler import Compiler

SELF = "_"
"""The variable that conditions of `group(...)` and `manager.clients` speak of."""


def aggregate(compiler: Compiler, node: ast.Call, argument: ast.expr, name: str) -> Part:
    """`count(...)`, `sum(...)` and the others."""
    measure = Measure.COUNT if name == "len" else Measure(name)
    if isinstance(argument, (ast.GeneratorExp, ast.ListComp)):
        loop = comprehension(compiler, argument)
        if loop is None:
            return compiler.broken(node)
        if isinstance(loop, Passage):
            return over_list(compiler, node, loop, measure)
        if measure is Measure.COUNT and loop.value is not None:
            return compiler.mistake(
                argument.elt,
                f"{name}() counts things, not values; put a condition behind 'if':"
                f" count({loop.variable} for {loop.variable} in ... if ...).",
            )
        return over_things(compiler, node, loop.selection, loop.value, measure, argument.elt)
    part = compiler.part(argument)
    if part.selection is not None:
        if measure is not Measure.COUNT:
            plural = compiler.schema.kinds[part.selection.kind].plural
            return compiler.mistake(
                argument, f"{name}() of what? Write {name}(x.FACT for x in {plural})."
            )
        return over_things(compiler, node, part.selection, None, measure, argument)
    return of_list(compiler, node, compiler.as_value(part), name, measure)


def listed(compiler: Compiler, node: Comprehension) -> Part:
    """`[h for h in hosts if ...]` is a collection; `[h.name for h in hosts]` is a list."""
    loop = comprehension(compiler, node)
    if loop is None:
        return compiler.broken(node)
    if isinstance(loop, Passage):
        return over_list(compiler, node, loop, Measure.VALUES)
    if loop.value is not None:
        return over_things(compiler, node, loop.selection, loop.value, Measure.VALUES, node.elt)
    kind = loop.selection.kind
    return Part(
        node,
        Shape(Type.LIST, thing=kind, many=True),
        compiler.broken(node).run,
        selection=loop.selection,
    )


# ── what a loop goes through ─────────────────────────────────────────────────────────────────────


@dataclasses.dataclass(slots=True, frozen=True)
class Gathering:
    """A loop over things."""

    variable: str
    selection: Selection
    value: Part | None


def comprehension(compiler: Compiler, node: Comprehension) -> Gathering | Passage | None:
    """None if there is a mistake in it."""
    if len(node.generators) != 1 or node.generators[0].is_async:
        compiler.mistake(node, "there is one 'for' in a loop, no more.")
        return None
    generator = node.generators[0]
    if not isinstance(generator.target, ast.Name) or generator.target.id.startswith("_"):
        compiler.mistake(generator.target, "a loop needs one plain name: 'for h in hosts'.")
        return None
    variable = generator.target.id
    source = compiler.part(generator.iter)
    if source.broken:
        return None
    if source.selection is not None:
        return _gathering(compiler, node, generator, variable, source.selection)
    if source.shape.type not in (Type.LIST, Type.DICT, Type.ANY) or source.shape.thing:
        compiler.mistake(
            generator.iter,
            f"a loop goes through a collection or a list, not through {words(source.shape)}.",
        )
        return None
    return passage(compiler, node, generator, variable, source)


def _gathering(
    compiler: Compiler,
    node: Comprehension,
    generator: ast.comprehension,
    variable: str,
    source: Selection,
) -> Gathering | None:
    if compiler.element is not None:
        compiler.mistake(node, NESTED)
        return None
    sorting = _Sorting(compiler, variable)
    told = len(compiler.mistakes)
    compiler.scopes.append({variable: Variable(source.kind)})
    compiler.element = variable
    try:
        for condition in generator.ifs:
            sorting.take(condition)
        itself = isinstance(node.elt, ast.Name) and node.elt.id == variable
        value = None if itself else compiler.value(node.elt)
        if value is not None:
            sorting.check(value)
    finally:
        compiler.element = None
        compiler.scopes.pop()
    if len(compiler.mistakes) > told:
        return None
    selection = Selection(
        source.kind,
        source.among,
        (*source.static, *sorting.static),
        (*source.timed, *sorting.timed),
        (*source.pairs, *sorting.pairs),
        (*source.words, *sorting.words),
    )
    return Gathering(variable, selection, value)


NESTED = (
    "a collection cannot be gone through inside a loop over another; what is asked about each"
    " thing must be one of its facts."
)


class _Sorting:
    """Sorts the conditions of a loop over things by what they depend on."""

    def __init__(self, compiler: Compiler, variable: str) -> None:
        self.compiler = compiler
        self.variable = variable
        self.static: list[Part] = []
        self.timed: list[Part] = []
        self.pairs: list[tuple[Part, Part]] = []
        self.words: list[str] = []

    def take(self, node: ast.expr) -> None:
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
            for value in node.values:
                self.take(value)
            return
        part = self.compiler.truth(node)
        if part.broken or (part.constant and part.value is True):
            return
        self.words.append(canonical(node, self.variable))
        pair = self._pair(node)
        if pair is not None:
            self.pairs.append(pair)
        elif self.check(part):
            timed = any(isinstance(read, TimeRead) for read in part.reads)
            (self.timed if timed else self.static).append(part)

    def _pair(self, node: ast.expr) -> tuple[Part, Part] | None:
        """`m.host == host.name`: what can be looked up instead of gone through."""
        if not (
            isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) is ast.Eq
        ):
            return None
        sides = self.compiler.value(node.left), self.compiler.value(node.comparators[0])
        for element, outer in (sides, sides[::-1]):
            if self._speaks_of(element, True) and self._speaks_of(outer, False):
                return element, outer
        return None

    def _speaks_of(self, part: Part, element: bool) -> bool:
        return bool(part.reads) and all(
            isinstance(read, FactRead) and (read.variable in (self.variable, SELF)) is element
            for read in part.reads
        )

    def check(self, part: Part) -> bool:
        """May it stand in a loop? It can if it depends on nothing but the thing, and the time."""
        for read in part.reads:
            sentence = ""
            if isinstance(read, FactRead) and read.variable not in (self.variable, SELF):
                other = read.variable or f"'{read.key}'"
                sentence = (
                    f"inside a loop over things, {other} can only be compared with '==', as a"
                    f" condition of its own: if {self.variable}.host == host.name."
                )
            elif isinstance(read, MomentRead):
                sentence = f"{read.name}() cannot be asked inside a loop."
            elif isinstance(read, LocalRead):
                sentence = (
                    f"'{read.variable}' of the loop around this one cannot be used in a loop over"
                    " things."
                )
            if sentence:
                self.compiler.mistake(part.node, sentence)
                return False
        return not part.broken


def over_things(
    compiler: Compiler,
    node: ast.AST,
    selection: Selection,
    value: Part | None,
    measure: Measure,
    element: ast.expr,
) -> Part:
    if compiler.element is not None:
        return compiler.mistake(node, NESTED)
    if value is not None:
        complaint = unsuited(measure, value.shape)
        if complaint:
            return compiler.mistake(element, complaint)
    reads = NO_READS.union(*(part.reads for part in selection.parts()))
    text = ""
    if value is not None:
        reads |= value.reads
        variables = {read.variable for read in reads if isinstance(read, FactRead)} - {SELF}
        text = canonical(value.node, variables.pop() if variables else SELF)
    about = compiler.subject if any(_of_subject(outer) for _, outer in selection.pairs) else None
    made = Aggregate(
        identity(measure, selection, text, reads, about),
        measure,
        selection,
        value,
        source_of(node),
        about,
        timed_value=value is not None and any(isinstance(read, TimeRead) for read in value.reads),
        weight=1 + sum(1 for _ in ast.walk(node)) // 2,
        reads=reads,
    )
    part = aggregate_part(node, made, result_shape(measure, value))
    return compiler.show(part, made)


def _of_subject(part: Part) -> bool:
    return any(isinstance(read, FactRead) and read.variable for read in part.reads)
