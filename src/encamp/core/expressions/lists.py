"""Loops over lists, and aggregates of lists: gone through whenever they are asked about."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from encamp.core.expressions.aggregate import (
    CHOOSING,
    Measure,
    result_shape,
    unsuited,
)
from encamp.core.expressions.frame import Frame, NotKnown, Run
from encamp.core.expressions.logic import holds
from encamp.core.expressions.part import (
    INT,
    LocalRead,
    Part,
    Variable,
    is_plain,
    source_of,
    words,
    words_of,
)
from encamp.core.expressions.tally import LEFT_OUT, RULED_OUT, TALLIES, is_admitted
from encamp.core.schema import Type

if TYPE_CHECKING:
    from encamp.core.expressions.compiler import Compiler

Comprehension = ast.GeneratorExp | ast.ListComp


@dataclasses.dataclass(slots=True, frozen=True)
class Passage:
    """A loop over a list."""

    variable: str
    values: Part
    conditions: tuple[Part, ...]
    value: Part
    weight: int


def passage(
    compiler: Compiler,
    node: Comprehension,
    generator: ast.comprehension,
    variable: str,
    source: Part,
) -> Passage | None:
    told = len(compiler.mistakes)
    compiler.scopes.append({variable: Variable()})
    try:
        conditions = tuple(compiler.truth(condition) for condition in generator.ifs)
        value = compiler.value(node.elt)
    finally:
        compiler.scopes.pop()
    if len(compiler.mistakes) > told:
        return None
    weight = sum(1 for _ in ast.walk(node))
    return Passage(variable, source, conditions, value, weight)


def over_list(compiler: Compiler, node: ast.AST, loop: Passage, measure: Measure) -> Part:
    complaint = unsuited(measure, loop.value.shape)
    if complaint:
        return compiler.mistake(loop.value.node, complaint)
    if measure is Measure.COUNT and not isinstance(loop.value.node, ast.Name):
        return compiler.mistake(
            loop.value.node,
            f"count() counts elements; put a condition behind 'if': count({loop.variable} for"
            f" {loop.variable} in ... if ...).",
        )
    reads = loop.values.reads.union(
        loop.value.reads, *(condition.reads for condition in loop.conditions)
    ) - {LocalRead(loop.variable)}
    go_through = _rounds(loop)

    def run(frame: Frame) -> Any:
        return _tallied(measure, go_through(frame), loop.values.node)

    return Part(node, result_shape(measure, loop.value), run, reads)


def _rounds(loop: Passage) -> Any:
    values, value, variable = loop.values.run, loop.value.run, loop.variable
    conditions = tuple(condition.run for condition in loop.conditions)

    def rounds(frame: Frame) -> Iterator[Any]:
        found = _sequence(values, frame, loop.values.node)
        outside = frame.slots.get(variable)
        try:
            for one in found:
                frame.spend(loop.weight)
                if not is_plain(one):
                    yield LEFT_OUT
                    continue
                frame.slots[variable] = one
                try:
                    yield value(frame) if holds(conditions, frame) else RULED_OUT
                except NotKnown:
                    yield LEFT_OUT
        finally:
            frame.slots[variable] = outside

    return rounds


def _sequence(values: Run, frame: Frame, node: ast.AST) -> Any:
    found = values(frame)
    if type(found) not in (list, tuple, dict):
        raise NotKnown(f"{source_of(node)} is {words_of(found)}, not a list")
    return found


def _tallied(measure: Measure, values: Iterator[Any], source: ast.AST) -> Any:
    """Nothing is ever taken out again, so that of numbers none has to be remembered but the best
    one."""
    counted = _Counted(measure)
    admitted = counted.admitted(values)
    tally = TALLIES[measure]()
    choose = BEST.get(measure)
    if choose is not None:
        best = choose(admitted, default=None)
        if best is not None:
            return best
    else:
        for position, value in enumerate(admitted):
            tally.add(f"{position:010}", value)
    if counted.unknown:
        raise NotKnown(f"nothing in {source_of(source)} has a value that {measure.value}() can use")
    return tally.result()


BEST: dict[Measure, Callable[..., Any]] = {Measure.MIN: min, Measure.MAX: max}


class _Counted:
    """Whether anything is known of those that are gone through, as it is for collections."""

    def __init__(self, measure: Measure) -> None:
        self.measure = measure
        self._known = False
        self._left_out = False

    @property
    def unknown(self) -> bool:
        return self._left_out and not self._known

    def admitted(self, values: Iterator[Any]) -> Iterator[Any]:
        for value in values:
            if value is RULED_OUT:
                self._known = self._known or self.measure in CHOOSING
            elif value is LEFT_OUT or not is_admitted(self.measure, value):
                self._left_out = True
            else:
                self._known = True
                yield value


def of_list(compiler: Compiler, node: ast.Call, part: Part, name: str, measure: Measure) -> Part:
    """An aggregate of a list as it is; `len` of a text or dict too."""
    if part.broken:
        return part
    sized = (Type.LIST, Type.ANY, Type.STR, Type.DICT) if name == "len" else (Type.LIST, Type.ANY)
    if part.shape.type not in sized:
        return compiler.mistake(
            node, f"{name}() is of a list or collection, not of {words(part.shape)}."
        )
    run = part.run
    if measure is Measure.COUNT:

        def length(frame: Frame) -> int:
            value = run(frame)
            if type(value) in (list, tuple, dict, str):
                return len(value)
            raise NotKnown(f"{source_of(part.node)} is {words_of(value)} and has no length")

        return compiler.made(node, INT, length, part)

    def over(frame: Frame) -> Any:
        values = _sequence(run, frame, part.node)
        frame.spend(len(values))
        return _tallied(measure, iter(values), part.node)

    return compiler.made(node, result_shape(measure, None), over, part)
