"""Functions of numbers."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from encamp.core.expressions import loops
from encamp.core.expressions.arithmetic import bounded
from encamp.core.expressions.frame import Frame, NotKnown, Run
from encamp.core.expressions.language import (
    LONGEST_NUMERAL,
)
from encamp.core.expressions.part import (
    BOOL,
    FLOAT,
    INT,
    NUMBERS,
    Builder,
    Part,
    Shape,
    source_of,
    words,
    words_of,
)
from encamp.core.schema import Type

if TYPE_CHECKING:
    from encamp.core.expressions.compiler import Compiler


MOST_DIGITS = 20
"""Of `round`."""


def round_of(compiler: Compiler, node: ast.Call, arguments: list[ast.expr]) -> Part:
    number = compiler.number(arguments[0], "round()")
    run = number.run
    if len(arguments) == 1:
        return compiler.made(node, INT, guarded(node, lambda frame: round(run(frame))), number)
    digits = compiler.whole(arguments[1], "the number of digits")
    places = digits.run

    def rounded(frame: Frame) -> Any:
        wanted = places(frame)
        if not -MOST_DIGITS <= wanted <= MOST_DIGITS:
            raise NotKnown(f"{source_of(node)} asks for more than {MOST_DIGITS} digits")
        return round(run(frame), wanted)

    return compiler.made(node, Shape(number.shape.type), guarded(node, rounded), number, digits)


def guarded(node: ast.AST, run: Run) -> Run:
    """Turns what Python raises over numbers and numerals into a value that is not known."""

    def run_guarded(frame: Frame) -> Any:
        try:
            return bounded(run(frame), node)
        except (ValueError, ArithmeticError):
            raise NotKnown(f"{source_of(node)} has no value") from None

    return run_guarded


def abs_of(compiler: Compiler, node: ast.Call, arguments: list[ast.expr]) -> Part:
    number = compiler.number(arguments[0], "abs()")
    run = number.run
    return compiler.made(node, Shape(number.shape.type), lambda frame: abs(run(frame)), number)


def converted(to: type[int] | type[float]) -> Builder:
    def build(compiler: Compiler, node: ast.Call, arguments: list[ast.expr]) -> Part:
        part = compiler.value(arguments[0])
        if part.broken:
            return part
        if part.shape.type in (Type.LIST, Type.DICT):
            return compiler.mistake(node, f"{words(part.shape)} cannot be made a number.")
        run = part.run

        def convert(frame: Frame) -> Any:
            value = run(frame)
            if type(value) is str:
                if len(value) > LONGEST_NUMERAL:
                    raise NotKnown(f"{source_of(arguments[0])} is too long to be a number")
            elif type(value) not in (int, float, bool):
                raise NotKnown(f"{source_of(arguments[0])} is {words_of(value)}, no number")
            return to(value)

        shape = INT if to is int else FLOAT
        return compiler.made(node, shape, guarded(node, convert), part)

    return build


def bool_of(compiler: Compiler, node: ast.Call, arguments: list[ast.expr]) -> Part:
    part = compiler.value(arguments[0])
    run = part.run
    return compiler.made(node, BOOL, lambda frame: bool(run(frame)), part)


def extreme(name: str, choose: Callable[..., Any]) -> Builder:
    def build(compiler: Compiler, node: ast.Call, arguments: list[ast.expr]) -> Part:
        if len(arguments) == 1:
            return loops.aggregate(compiler, node, arguments[0], name)
        parts = [compiler.value(argument) for argument in arguments]
        types = {part.shape.type for part in parts if not part.broken}
        if not (types <= NUMBERS | {Type.ANY} or types <= {Type.STR, Type.ANY}):
            return compiler.mistake(node, f"{name}() compares numbers, or texts, not a mixture.")
        runs = tuple(part.run for part in parts)

        def choose_one(frame: Frame) -> Any:
            values = [run(frame) for run in runs]
            kinds = set(map(type, values))
            if not (kinds <= {int, float} or kinds == {str}):
                raise NotKnown(f"{source_of(node)} is of values that cannot be compared")
            return choose(values)

        shape = Shape(types.pop()) if len(types) == 1 else FLOAT
        return compiler.made(node, shape, choose_one, *parts)

    return build


def aggregate(name: str) -> Builder:
    def build(compiler: Compiler, node: ast.Call, arguments: list[ast.expr]) -> Part:
        return loops.aggregate(compiler, node, arguments[0], name)

    return build
