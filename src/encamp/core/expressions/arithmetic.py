"""Arithmetic.

Where both sides are of a type that is known when the expression is loaded, the closures do nothing
but the operation: facts are checked to be of their type when they are read. Otherwise they look
first.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from encamp.core.expressions import logic
from encamp.core.expressions.frame import Frame, NotKnown, Run
from encamp.core.expressions.language import (
    BINARY,
    LARGEST_INT,
    LONGEST_STRING,
    UNARY,
)
from encamp.core.expressions.part import (
    ANY,
    FLOAT,
    INT,
    LIST,
    NUMBERS,
    STR,
    Part,
    Shape,
    source_of,
    words,
    words_of,
)
from encamp.core.schema import Type

if TYPE_CHECKING:
    from encamp.core.expressions.compiler import Compiler

ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}
REAL = frozenset({int, float})


def bounded(value: Any, node: ast.AST) -> Any:
    """A number that is not too large to go on with."""
    if type(value) is int and not -LARGEST_INT <= value <= LARGEST_INT:
        raise NotKnown(f"{source_of(node)} is a number that is too large")
    return value


def binary(compiler: Compiler, node: ast.BinOp) -> Part:
    left, right = compiler.value(node.left), compiler.value(node.right)
    symbol = BINARY[type(node.op)]
    shape = _result(symbol, left.shape, right.shape)
    if shape is None:
        if left.broken or right.broken:
            return compiler.broken(node)
        return compiler.mistake(node, _complaint(symbol, left.shape, right.shape))
    if shape.type is Type.STR or shape.type is Type.LIST:
        run = _joining(left.run, right.run, node)
    elif left.shape.type in NUMBERS and right.shape.type in NUMBERS:
        run = _numeric(ARITHMETIC[symbol], left, right, node)
    else:
        run = _looking(symbol, left.run, right.run, node)
    return compiler.made(node, shape, run, left, right)


def _result(symbol: str, left: Shape, right: Shape) -> Shape | None:
    types = {left.type, right.type}
    if types <= NUMBERS:
        return FLOAT if symbol == "/" or Type.FLOAT in types else INT
    if symbol == "+" and len(types - {Type.ANY}) == 1 and types & {Type.STR, Type.LIST}:
        if Type.ANY in types:
            return ANY
        return STR if left.type is Type.STR else LIST
    if types <= NUMBERS | {Type.ANY}:
        return FLOAT if symbol == "/" else ANY
    return None


def _complaint(symbol: str, left: Shape, right: Shape) -> str:
    types = {left.type, right.type}
    said = f"'{symbol}' does not go between {words(left)} and {words(right)}"
    if symbol == "+" and Type.STR in types:
        return f"{said}; write f'...{{value}}...', or str(value)."
    if Type.BOOL in types:
        return f"{said}; count what is true with count(... if ...)."
    if symbol in "%*" and types & {Type.STR, Type.LIST}:
        return f"{said}; write texts as f'...{{value}}...'."
    return f"{said}; it takes numbers."


def _numeric(operate: Callable[[Any, Any], Any], left: Part, right: Part, node: ast.BinOp) -> Run:
    one, other = left.run, right.run
    if right.constant:
        fixed = right.value

        def with_constant(frame: Frame) -> Any:
            try:
                value = operate(one(frame), fixed)
            except ArithmeticError as error:
                raise _impossible(node, error) from None
            if -LARGEST_INT <= value <= LARGEST_INT:
                return value
            return bounded(value, node)

        return with_constant

    def numeric(frame: Frame) -> Any:
        try:
            value = operate(one(frame), other(frame))
        except ArithmeticError as error:
            raise _impossible(node, error) from None
        if -LARGEST_INT <= value <= LARGEST_INT:
            return value
        return bounded(value, node)

    return numeric


def _impossible(node: ast.AST, error: ArithmeticError) -> NotKnown:
    what = "divides by zero" if isinstance(error, ZeroDivisionError) else "is too large a number"
    return NotKnown(f"{source_of(node)} {what}")


def _joining(left: Run, right: Run, node: ast.BinOp) -> Run:
    def join(frame: Frame) -> Any:
        one, other = left(frame), right(frame)
        return joined(frame, one, other, node)

    return join


def joined(frame: Frame, one: Any, other: Any, node: ast.AST) -> Any:
    length = len(one) + len(other)
    if length > LONGEST_STRING:
        raise NotKnown(f"{source_of(node)} is longer than {LONGEST_STRING:,}")
    frame.spend(length // 64)
    return one + other if isinstance(one, str) else [*one, *other]


def _looking(symbol: str, left: Run, right: Run, node: ast.BinOp) -> Run:
    operate = ARITHMETIC[symbol]

    def looking(frame: Frame) -> Any:
        one, other = left(frame), right(frame)
        kinds = {type(one), type(other)}
        if kinds <= REAL:
            try:
                return bounded(operate(one, other), node)
            except ArithmeticError as error:
                raise _impossible(node, error) from None
        if symbol == "+" and (kinds == {str} or kinds <= {list, tuple}):
            return joined(frame, one, other, node)
        raise NotKnown(
            f"{source_of(node)} cannot be worked out: '{symbol}' does not go between"
            f" {words_of(one)} and {words_of(other)}"
        )

    return looking


def unary(compiler: Compiler, node: ast.UnaryOp) -> Part:
    symbol = UNARY[type(node.op)]
    if symbol == "not":
        return logic.negation(compiler, node)
    part = compiler.number(node.operand, f"'{symbol}'")
    inner = part.run
    if symbol == "+":
        return compiler.made(node, Shape(part.shape.type), inner, part)
    return compiler.made(
        node, Shape(part.shape.type), lambda frame: bounded(-inner(frame), node), part
    )
