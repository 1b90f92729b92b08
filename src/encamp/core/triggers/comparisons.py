"""Expressions that compare something with fixed values: `host.load1 > 8 and host.cpus == 4`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import NamedTuple, TypeGuard

from encamp.core.expressions.language import CONSTANTS
from encamp.core.schema import Type
from encamp.core.world import Known

TRANSPARENT = (
    *(ast.Expression, ast.BoolOp, ast.boolop, ast.UnaryOp, ast.unaryop, ast.Constant, ast.Load),
    *(ast.Compare, ast.cmpop, ast.BinOp, ast.operator),
)
"""Syntax whose value follows from the values of its parts, and from nothing else."""

ORDERED: frozenset[type[ast.cmpop]] = frozenset({ast.Lt, ast.LtE, ast.Gt, ast.GtE})
EQUAL: frozenset[type[ast.cmpop]] = frozenset({ast.Eq, ast.NotEq})
TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
    ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
}
"""What a comparison is called with its sides exchanged."""

ARITHMETIC: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
NUMBERS = frozenset({Type.INT, Type.FLOAT})

Threshold = int | float | str


class Comparison(NamedTuple):
    term: ast.expr
    way: type[ast.cmpop]
    value: Threshold
    needed: bool
    """Can the expression only be true if this is?"""

    @property
    def is_ordered(self) -> bool:
        """Does it matter on which side of the value the term is, or only whether it is there?"""
        return self.way in ORDERED

    def suits(self, kind: Type) -> bool:
        """Are values of this type compared in the way that is expected here?"""
        if isinstance(self.value, str):
            return kind is Type.STR and not self.is_ordered
        return kind in NUMBERS


def comparisons(text: str) -> list[Comparison] | None:
    """All comparisons with fixed values that an expression consists of; None if it does not."""
    found: list[Comparison] = []
    waiting: list[tuple[ast.AST, bool]] = [(ast.parse(f"({text}\n)", mode="eval"), True)]
    while waiting:
        node, needed = waiting.pop()
        compared = _comparison(node, needed)
        if compared is not None:
            found.append(compared)
        elif isinstance(node, TRANSPARENT):
            whole = isinstance(node, ast.Expression) or (
                isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And)
            )
            waiting.extend((child, needed and whole) for child in ast.iter_child_nodes(node))
        else:
            return None
    return found


def _comparison(node: ast.AST, needed: bool) -> Comparison | None:
    """`something > 3`, or the other way round."""
    if not isinstance(node, ast.Compare) or len(node.ops) > 1:
        return None
    way, left, right = type(node.ops[0]), node.left, node.comparators[0]
    if way not in ORDERED and way not in EQUAL:
        return None
    one, other = _fixed(left), _fixed(right)
    if one is None and other is not None:
        return Comparison(left, way, other, needed)
    if one is not None and other is None:
        return Comparison(right, TURNED.get(way, way), one, needed)
    return None


def _fixed(node: ast.expr) -> Threshold | None:
    """The value of a part that never has another: `8`, `4 * GiB`, `'lost'`."""
    if isinstance(node, ast.Constant):
        value = node.value
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            return value
        return None
    if isinstance(node, ast.Name):
        return CONSTANTS.get(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        operand = _fixed(node.operand)
        return None if operand is None or isinstance(operand, str) else -operand
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        one, other = _fixed(node.left), _fixed(node.right)
        if isinstance(one, int | float) and isinstance(other, int | float):
            return ARITHMETIC[type(node.op)](one, other)
    return None


def is_number(value: Known) -> TypeGuard[float]:
    # What is no number at all, NaN, equals nothing.
    return type(value) in (int, float) and value == value
