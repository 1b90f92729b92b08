"""Functions and methods of texts."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from encamp.core.expressions.frame import Frame, NotKnown
from encamp.core.expressions.globs import Glob, PatternError
from encamp.core.expressions.language import (
    LONGEST_STRING,
)
from encamp.core.expressions.literals import text_of
from encamp.core.expressions.part import (
    BOOL,
    STR,
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


def str_of(compiler: Compiler, node: ast.Call, arguments: list[ast.expr]) -> Part:
    part = compiler.value(arguments[0])
    run = part.run
    return compiler.made(node, STR, lambda frame: text_of(frame, run(frame), node), part)


def matches(compiler: Compiler, node: ast.Call, arguments: list[ast.expr]) -> Part:
    part = compiler.text(arguments[0], "matches()")
    pattern = arguments[1]
    if not (isinstance(pattern, ast.Constant) and type(pattern.value) is str):
        return compiler.mistake(pattern, "a pattern must be written as it is: 'node*'.")
    try:
        glob = Glob(pattern.value)
    except PatternError as bad:
        return compiler.mistake(pattern, str(bad))
    run = part.run

    def fits(frame: Frame) -> bool:
        text = run(frame)
        frame.spend(glob.steps(text))
        return glob.matches(text)

    return compiler.made(node, BOOL, fits, part)


def method(name: str, result: Shape) -> Builder:
    operate: Callable[..., Any] = getattr(str, name)

    def build(compiler: Compiler, node: ast.Call, arguments: list[ast.expr]) -> Part:
        parts = [compiler.text(argument, f"{name}()") for argument in arguments]
        runs = tuple(part.run for part in parts)

        def run(frame: Frame) -> Any:
            values = [one(frame) for one in runs]
            frame.spend(sum(map(len, values)) // 64)
            try:
                return operate(*values)
            except ValueError:
                raise NotKnown(f"{source_of(node)} has no value: a text is empty") from None

        return compiler.made(node, result, run, *parts)

    return build


def join(compiler: Compiler, node: ast.Call, arguments: list[ast.expr]) -> Part:
    between = compiler.text(arguments[0], "join()")
    values = compiler.value(arguments[1])
    if not values.broken and values.shape.type not in (Type.LIST, Type.ANY):
        return compiler.mistake(arguments[1], f"join() takes a list, not {words(values.shape)}.")
    one, other = between.run, values.run

    def joined(frame: Frame) -> str:
        glue, found = one(frame), other(frame)
        if type(found) not in (list, tuple):
            raise NotKnown(f"{source_of(arguments[1])} is {words_of(found)}, not a list")
        frame.spend(len(found))
        texts: list[str] = []
        length = 0
        for value in found:
            texts.append(text_of(frame, value, node))
            length += len(texts[-1]) + len(glue)
            if length > LONGEST_STRING:
                raise NotKnown(f"{source_of(node)} is longer than {LONGEST_STRING:,} characters")
        return str(glue).join(texts)

    return compiler.made(node, STR, joined, between, values)
