"""Numbers, texts, lists, dicts and f-strings as they are written."""

from __future__ import annotations

import ast
import math
import re
from typing import TYPE_CHECKING, Any

import msgspec

from encamp.core.expressions.carrying import parts_within
from encamp.core.expressions.frame import Frame, NotKnown
from encamp.core.expressions.language import LARGEST_INT, LONGEST_LIST, LONGEST_STRING, WIDEST
from encamp.core.expressions.part import DICT, LIST, NUMBERS, STR, Part, source_of, words, words_of
from encamp.core.schema import Type

if TYPE_CHECKING:
    from encamp.core.expressions.compiler import Compiler

NUMERIC_FORMAT = re.compile(r"[<>^]?[+-]?0?(\d{0,2}),?(?:\.(\d{1,2}))?([dfge%]?)")
TEXT_FORMAT = re.compile(r"[<>^]?(\d{0,2})s?")
LONGEST_FORMAT = 16


def constant(compiler: Compiler, node: ast.Constant) -> Part:
    value = node.value
    if type(value) is int and value > LARGEST_INT:
        return compiler.mistake(node, "this number is too large.")
    if type(value) is float and not math.isfinite(value):
        return compiler.mistake(node, "this number is too large.")
    if type(value) is str and len(value) > LONGEST_STRING:
        return compiler.mistake(node, "this text is too long.")
    if value is not None and type(value) not in (bool, int, float, str):
        return compiler.mistake(
            node, "only numbers, texts, True, False and None can be written here."
        )
    return compiler.constant(node, value)


def sequence(compiler: Compiler, node: ast.List | ast.Tuple | ast.Set) -> Part:
    if len(node.elts) > LONGEST_LIST:
        return compiler.mistake(node, f"this has more than {LONGEST_LIST:,} elements.")
    parts = [compiler.value(element) for element in node.elts]
    runs = tuple(part.run for part in parts)
    return compiler.made(node, LIST, lambda frame: [run(frame) for run in runs], *parts)


def mapping(compiler: Compiler, node: ast.Dict) -> Part:
    if len(node.keys) > LONGEST_LIST:
        return compiler.mistake(node, f"this has more than {LONGEST_LIST:,} elements.")
    names: list[str] = []
    for key, value in zip(node.keys, node.values, strict=True):
        if not (isinstance(key, ast.Constant) and type(key.value) is str):
            return compiler.mistake(
                key or value, "a key must be written as a text: {'key': value}."
            )
        names.append(key.value)
    parts = [compiler.value(value) for value in node.values]
    runs = tuple(zip(names, (part.run for part in parts), strict=True))
    return compiler.made(node, DICT, lambda frame: {name: run(frame) for name, run in runs}, *parts)


# ── texts made of values ─────────────────────────────────────────────────────────────────────────


def text_of(frame: Frame, value: Any, node: ast.AST) -> str:
    """How a value reads in a text."""
    kind = type(value)
    if kind is str:
        made: str = value
    elif kind is list or kind is tuple or kind is dict:
        parts = parts_within(value, LONGEST_STRING)
        frame.spend(parts or LONGEST_STRING // 2)
        if not parts:
            raise NotKnown(f"{source_of(node)} is longer than {LONGEST_STRING:,} characters")
        try:
            made = msgspec.json.encode(value).decode()
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
            raise NotKnown(f"{source_of(node)} cannot be written as a text") from None
    else:
        try:
            made = str(value)
        except ValueError:
            raise NotKnown(f"{source_of(node)} is a number that is too large") from None
    frame.spend(len(made) // 64)
    if len(made) > LONGEST_STRING:
        raise NotKnown(f"{source_of(node)} is longer than {LONGEST_STRING:,} characters")
    return made


def joined_text(compiler: Compiler, node: ast.JoinedStr) -> Part:
    parts: list[Part] = []
    for value in node.values:
        if isinstance(value, ast.FormattedValue):
            parts.append(_formatted(compiler, value))
        else:
            parts.append(compiler.value(value))
    runs = tuple(part.run for part in parts)

    def join(frame: Frame) -> str:
        texts = [run(frame) for run in runs]
        length = sum(map(len, texts))
        if length > LONGEST_STRING:
            raise NotKnown(f"the text is longer than {LONGEST_STRING:,} characters")
        frame.spend(length // 64)
        return "".join(texts)

    return compiler.made(node, STR, join, *parts)


def _formatted(compiler: Compiler, node: ast.FormattedValue) -> Part:
    part = compiler.value(node.value)
    if part.broken:
        return part
    if node.conversion != -1:
        return compiler.mistake(node.value, "'!' does not go into an f-string here; leave it out.")
    run, shown = part.run, node.value
    if node.format_spec is None:
        return compiler.made(shown, STR, lambda frame: text_of(frame, run(frame), shown), part)
    pieces = node.format_spec.values if isinstance(node.format_spec, ast.JoinedStr) else []
    if not all(isinstance(piece, ast.Constant) for piece in pieces):
        return compiler.mistake(shown, "the format after ':' must be written as it is.")
    form = "".join(str(piece.value) for piece in pieces if isinstance(piece, ast.Constant))
    types = _takes(form)
    if not types:
        return compiler.mistake(
            shown,
            f"':{form[:LONGEST_FORMAT]}' is no format; there are such as ':.1f', ':,', ':>10', with"
            f" at most {WIDEST} characters or digits.",
        )
    if part.shape.type is not Type.ANY and part.shape.type not in types:
        return compiler.mistake(shown, f"':{form}' is no format for {words(part.shape)}.")
    allowed = frozenset(
        kind
        for wanted in types
        for kind in {Type.STR: (str,), Type.INT: (int,)}.get(wanted, (int, float))
    )

    def format_value(frame: Frame) -> str:
        value = run(frame)
        if type(value) not in allowed:
            raise NotKnown(
                f"{source_of(shown)} is {words_of(value)}, which ':{form}' does not suit"
            )
        try:
            return format(value, form)
        except (ValueError, OverflowError):
            raise NotKnown(f"{source_of(shown)} cannot be written as ':{form}'") from None

    return compiler.made(shown, STR, format_value, part)


def _takes(form: str) -> frozenset[Type]:
    """The types of values that a format is for; none: it is no format."""
    if len(form) > LONGEST_FORMAT:
        return frozenset()
    found: frozenset[Type] = frozenset()
    if form.isascii() and TEXT_FORMAT.fullmatch(form):
        found |= {Type.STR}
    match = NUMERIC_FORMAT.fullmatch(form) if form.isascii() else None
    if match:
        whole_only = match[3] == "d"
        if not (whole_only and match[2]):
            found |= {Type.INT} if whole_only else NUMBERS
    return found
