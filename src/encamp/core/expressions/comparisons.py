"""Comparisons, and what is in what."""

from __future__ import annotations

import ast
import dataclasses
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from encamp.core.expressions import facts, logic, worded
from encamp.core.expressions.arithmetic import REAL
from encamp.core.expressions.frame import Frame, NotKnown, Run
from encamp.core.expressions.language import (
    COMPARISONS,
)
from encamp.core.expressions.part import (
    BOOL,
    NUMBERS,
    Part,
    Shape,
    source_of,
    words,
    words_of,
)
from encamp.core.schema import Type

if TYPE_CHECKING:
    from encamp.core.expressions.compiler import Compiler

ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
EQUALITY: dict[str, Callable[[Any, Any], bool]] = {"==": operator.eq, "!=": operator.ne}
RELATIONS = {**ORDER, **EQUALITY}


def compare(compiler: Compiler, node: ast.Compare) -> Part:
    """A chain is the same as its links joined by `and`, but looks at what is between two links
    only once: otherwise chains inside chains would take twice as long at each level."""
    parts = [compiler.part(operand) for operand in (node.left, *node.comparators)]
    between = [_Between(part) for part in parts[1:-1] if not _is_leaf(part)]
    for one in between:
        parts[parts.index(one.part)] = one.standing_in()
    links: list[Part] = []
    for relation, left, right in zip(node.ops, parts, parts[1:], strict=False):
        assert isinstance(left.node, ast.expr)
        assert isinstance(right.node, ast.expr)
        link = ast.Compare(left.node, [relation], [right.node])
        ast.copy_location(link, node if left is parts[0] else left.node)
        links.append(_link(compiler, link, COMPARISONS[type(relation)], left, right))
    chain = logic.joined_logic(compiler, node, links, ends=False)
    if not between or chain.broken:
        return chain
    decide = chain.run

    def run(frame: Frame) -> Any:
        for one in between:
            one.look(frame)
        return decide(frame)

    return dataclasses.replace(chain, run=run)


def _is_leaf(part: Part) -> bool:
    return part.constant or part.broken or part.path is not None or part.selection is not None


class _Between:
    """What stands between two links of a chain."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.slot = f"{id(part)}"
        """No variable is called like that."""

    def look(self, frame: Frame) -> None:
        try:
            frame.slots[self.slot] = self.part.run(frame)
        except NotKnown as unknown:
            frame.slots[self.slot] = unknown

    def standing_in(self) -> Part:
        slot = self.slot

        def seen(frame: Frame) -> Any:
            value = frame.slots[slot]
            if isinstance(value, NotKnown):
                raise value
            return value

        return dataclasses.replace(self.part, run=seen)


def _link(compiler: Compiler, node: ast.Compare, symbol: str, left: Part, right: Part) -> Part:
    if symbol in ("in", "not in"):
        return _membership(compiler, node, left, right, symbol == "not in")
    left, right = compiler.as_value(left), compiler.as_value(right)
    if left.broken or right.broken:
        return compiler.broken(node)
    if symbol in ("is", "is not"):
        if not (right.constant and right.value is None):
            return compiler.mistake(
                node, f"'{symbol}' goes only before None; write {'==' if symbol == 'is' else '!='}."
            )
        symbol = "==" if symbol == "is" else "!="
    kinds = {_class(left.shape), _class(right.shape)}
    known = len(kinds) == 1 and Type.ANY not in kinds
    if symbol in EQUALITY:
        if not known and Type.ANY not in kinds:
            return compiler.mistake(
                node, f"{words(left.shape)} and {words(right.shape)} are never equal."
            )
        if worded.is_never(compiler, left, right) or worded.is_never(compiler, right, left):
            return compiler.broken(node)
        return compiler.made(node, BOOL, _comparing(symbol, left, right), left, right)
    if known and kinds <= {Type.FLOAT, Type.STR}:
        return compiler.made(node, BOOL, _comparing(symbol, left, right), left, right)
    if Type.ANY in kinds and kinds <= {Type.FLOAT, Type.STR, Type.ANY}:
        return compiler.made(node, BOOL, _ordering(symbol, left.run, right.run, node), left, right)
    return compiler.mistake(
        node,
        f"'{symbol}' does not go between {words(left.shape)} and {words(right.shape)};"
        " it compares numbers, or texts.",
    )


def _class(shape: Shape) -> Type:
    return Type.FLOAT if shape.type in NUMBERS else shape.type


def _comparing(symbol: str, left: Part, right: Part) -> Run:
    one, other = left.run, right.run
    if right.constant:
        slow = WITH_CONSTANT[symbol](one, right.value)
        only = ONE_TYPE.get(left.shape.type)
        if only is None or left.path is None or not left.path.of_subject:
            return slow
        fact = left.path.steps[0].fact
        return OF_SUBJECT_WITH_CONSTANT[symbol](fact, only, right.value, slow)
    if symbol in EQUALITY and left.shape.type in NESTED:
        negated = symbol == "!="
        return lambda frame: equal(frame, one(frame), other(frame)) is not negated
    relation = RELATIONS[symbol]
    return lambda frame: relation(one(frame), other(frame))


NESTED = frozenset({Type.LIST, Type.DICT, Type.ANY})


def equal(frame: Frame, left: Any, right: Any) -> bool:
    """As Python has it, but it takes steps, and however deep values are nested."""
    waiting = [(left, right)]
    while waiting:
        one, other = waiting.pop()
        if type(one) in LISTS and type(other) in LISTS:
            if len(one) != len(other):
                return False
            frame.spend(len(one))
            waiting.extend(zip(one, other, strict=True))
        elif type(one) is dict and type(other) is dict:
            if one.keys() != other.keys():
                return False
            frame.spend(len(one))
            waiting.extend((value, other[key]) for key, value in one.items())
        elif one != other:
            return False
    return True


LISTS = frozenset({list, tuple})


WITH_CONSTANT: dict[str, Callable[[Run, Any], Run]] = {
    "==": lambda one, fixed: lambda frame: one(frame) == fixed,
    "!=": lambda one, fixed: lambda frame: one(frame) != fixed,
    "<": lambda one, fixed: lambda frame: one(frame) < fixed,
    "<=": lambda one, fixed: lambda frame: one(frame) <= fixed,
    ">": lambda one, fixed: lambda frame: one(frame) > fixed,
    ">=": lambda one, fixed: lambda frame: one(frame) >= fixed,
}

Fused = Callable[[str, type, Any, Run], Run]
OF_SUBJECT_WITH_CONSTANT: dict[str, Fused] = {
    "==": lambda fact, only, fixed, slow: (
        lambda frame: (
            value == fixed if type(value := frame.subject.facts.get(fact)) is only else slow(frame)
        )
    ),
    "!=": lambda fact, only, fixed, slow: (
        lambda frame: (
            value != fixed if type(value := frame.subject.facts.get(fact)) is only else slow(frame)
        )
    ),
    "<": lambda fact, only, fixed, slow: (
        lambda frame: (
            value < fixed if type(value := frame.subject.facts.get(fact)) is only else slow(frame)
        )
    ),
    "<=": lambda fact, only, fixed, slow: (
        lambda frame: (
            value <= fixed if type(value := frame.subject.facts.get(fact)) is only else slow(frame)
        )
    ),
    ">": lambda fact, only, fixed, slow: (
        lambda frame: (
            value > fixed if type(value := frame.subject.facts.get(fact)) is only else slow(frame)
        )
    ),
    ">=": lambda fact, only, fixed, slow: (
        lambda frame: (
            value >= fixed if type(value := frame.subject.facts.get(fact)) is only else slow(frame)
        )
    ),
}
"""What most conditions are, in one call: they are run for every host there is. A value of another
type takes the way of all others, where it is told why it is not known."""

ONE_TYPE: dict[Type, type] = {
    Type.BOOL: bool,
    Type.INT: int,
    Type.FLOAT: float,
    Type.STR: str,
}


def _ordering(symbol: str, left: Run, right: Run, node: ast.Compare) -> Run:
    relation = ORDER[symbol]

    def ordering(frame: Frame) -> bool:
        one, other = left(frame), right(frame)
        kinds = {type(one), type(other)}
        if kinds <= REAL or kinds == {str}:
            return relation(one, other)
        raise NotKnown(
            f"{source_of(node)} cannot be told: '{symbol}' does not go between"
            f" {words_of(one)} and {words_of(other)}"
        )

    return ordering


def _membership(
    compiler: Compiler, node: ast.Compare, left: Part, right: Part, negated: bool
) -> Part:
    if right.selection is not None:
        return facts.belongs(compiler, node, compiler.as_value(left), right.selection, negated)
    left, right = compiler.as_value(left), compiler.as_value(right)
    if left.broken or right.broken:
        return compiler.broken(node)
    kind = right.shape.type
    if kind not in (Type.STR, Type.LIST, Type.DICT, Type.ANY):
        return compiler.mistake(
            node,
            f"'in' looks into a list, text, dict or collection, not into {words(right.shape)}.",
        )
    if kind in (Type.STR, Type.DICT) and left.shape.type not in (Type.STR, Type.ANY):
        return compiler.mistake(node, f"{words(left.shape)} cannot be in {words(right.shape)}.")
    if right.constant and kind is Type.LIST and left.shape.type is not Type.ANY:
        classes = {_class(compiler.shape_of(value)) for value in right.value}
        if classes and classes.isdisjoint({_class(left.shape), Type.ANY}):
            return compiler.mistake(node, f"{words(left.shape)} is never in this list.")
    if kind is Type.LIST and worded.is_never(compiler, left, right):
        return compiler.broken(node)
    one, other = left.run, right.run
    cost_known = right.constant

    def inside(frame: Frame) -> bool:
        value, values = one(frame), other(frame)
        if type(values) is str or type(values) is dict:
            if type(value) is not str:
                raise NotKnown(
                    f"{source_of(node)} cannot be told: {words_of(value)} cannot be in"
                    f" {words_of(values)}"
                )
        elif type(values) is not list and type(values) is not tuple:
            raise NotKnown(f"{source_of(node)} cannot be told: {words_of(values)} holds nothing")
        if type(values) is str or type(values) is dict:
            frame.spend(0 if type(values) is dict else len(values) // 16)
            return (value in values) is not negated
        if type(value) in LISTS or type(value) is dict:
            return any(equal(frame, value, one) for one in values) is not negated
        if not cost_known:
            each = len(value) // 64 if type(value) is str else 0
            frame.spend(len(values) // 16 + len(values) * each)
        return (value in values) is not negated

    return compiler.made(node, BOOL, inside, left, right)
