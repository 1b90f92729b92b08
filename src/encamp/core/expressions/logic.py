"""`and`, `or`, `not` and `if`, with a third truth value: not known."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING

from encamp.core.expressions.frame import Frame, NotKnown, Run
from encamp.core.expressions.part import (
    ANY,
    BOOL,
    FLOAT,
    NUMBERS,
    Part,
    Shape,
)

if TYPE_CHECKING:
    from encamp.core.expressions.compiler import Compiler


def logic(compiler: Compiler, node: ast.BoolOp) -> Part:
    parts = [compiler.truth(value) for value in node.values]
    return joined_logic(compiler, node, parts, ends=isinstance(node.op, ast.Or))


def holds(conditions: Iterable[Run], frame: Frame) -> bool:
    """Are they all true? False if one is, whatever is not known about the others."""
    unknown: NotKnown | None = None
    for condition in conditions:
        try:
            if not condition(frame):
                return False
        except NotKnown as found:
            unknown = unknown or found
    if unknown is not None:
        raise unknown
    return True


def joined_logic(compiler: Compiler, node: ast.AST, parts: list[Part], *, ends: bool) -> Part:
    """`or` ends with the first that is True, `and` with the first that is False; whatever is not
    known about the others does not matter then."""
    if len(parts) == 1:
        return parts[0]
    if len(parts) == 2:
        combine = _either if ends else _both
        return compiler.made(node, BOOL, combine(parts[0].run, parts[1].run), *parts)
    runs = tuple(part.run for part in parts)

    def run(frame: Frame) -> bool:
        unknown: NotKnown | None = None
        for one in runs:
            try:
                if bool(one(frame)) is ends:
                    return ends
            except NotKnown as found:
                unknown = unknown or found
        if unknown is not None:
            raise unknown
        return not ends

    return compiler.made(node, BOOL, run, *parts)


def _both(one: Run, other: Run) -> Run:
    def run(frame: Frame) -> bool:
        try:
            if not one(frame):
                return False
        except NotKnown:
            if not other(frame):
                return False
            raise
        result: bool = other(frame)
        return result

    return run


def _either(one: Run, other: Run) -> Run:
    def run(frame: Frame) -> bool:
        try:
            if one(frame):
                return True
        except NotKnown:
            if other(frame):
                return True
            raise
        result: bool = other(frame)
        return result

    return run


def negation(compiler: Compiler, node: ast.UnaryOp) -> Part:
    part = compiler.truth(node.operand)
    inner = part.run
    return compiler.made(node, BOOL, lambda frame: not inner(frame), part)


def choice(compiler: Compiler, node: ast.IfExp) -> Part:
    test = compiler.truth(node.test)
    left, right = compiler.value(node.body), compiler.value(node.orelse)
    condition, one, other = test.run, left.run, right.run
    if left.shape == right.shape:
        shape = left.shape
    elif {left.shape.type, right.shape.type} <= NUMBERS:
        shape = FLOAT
    elif left.shape.type is right.shape.type:
        shape = Shape(left.shape.type)
    else:
        shape = ANY
    return compiler.made(
        node,
        shape,
        lambda frame: one(frame) if condition(frame) else other(frame),
        test,
        left,
        right,
    )
