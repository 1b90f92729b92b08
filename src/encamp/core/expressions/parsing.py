"""From text to syntax, within limits. Whatever Python's parser thinks of a text, what comes out is
either syntax of which every node is allowed, or an ExpressionError."""

from __future__ import annotations

import ast
import warnings

from encamp.core.expressions.language import (
    ALLOWED,
    DEEPEST,
    LONGEST_LIST,
    LONGEST_TEXT,
    MOST_NODES,
    REFUSED,
)
from encamp.core.expressions.mistakes import ExpressionError, Mistake

FAILURES = (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError)
"""What Python's parser raises: bad syntax, null bytes and lone surrogates, nesting too deep."""


class Source:
    """A text, and how places in it are told. Lines lose their indentation, since in a file of
    definitions it means nothing."""

    def __init__(self, text: str) -> None:
        self.text = text
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self.lines = [line.lstrip(" \t\f") for line in lines]
        self.indents = [len(line) - len(bare) for line, bare in zip(lines, self.lines, strict=True)]
        self.before = 0
        """Characters put before the first line."""

    def mistake(self, line: int, column: int, sentence: str) -> Mistake:
        """`line` from 1, `column` in bytes from 0, as Python's parser tells them."""
        line = min(max(line, 1), len(self.lines))
        if line == 1:
            column -= self.before
        shown = self.lines[line - 1].encode("utf-8", "replace")
        characters = len(shown[: max(column, 0)].decode("utf-8", "ignore"))
        return Mistake(line, characters + self.indents[line - 1] + 1, sentence)

    def mistake_at(self, node: ast.AST, sentence: str) -> Mistake:
        return self.mistake(getattr(node, "lineno", 1), getattr(node, "col_offset", 0), sentence)

    def wrong(self, sentence: str) -> ExpressionError:
        return ExpressionError(self.text[:LONGEST_TEXT], [self.mistake(1, 0, sentence)])


def parse_expression(source: Source) -> ast.expr:
    _check_length(source)
    # In brackets, so that it can go on over several lines. What comes out is a list of one element
    # only if the brackets inside the text match each other.
    text = "\n".join(source.lines)
    if len(source.lines) == 1:
        # For what Python says about mistakes: about brackets that are not there it would confuse.
        _parse(source, text, "eval")
    source.before = 1
    tree = _parse(source, f"[{text}\n]", "eval")
    assert isinstance(tree, ast.Expression)
    if isinstance(tree.body, ast.ListComp):
        raise source.wrong("a loop stands inside of any(...), sum(...) and the like.")
    if not isinstance(tree.body, ast.List) or len(tree.body.elts) != 1:
        raise source.wrong("one expression is expected here.")
    expression = tree.body.elts[0]
    _check(source, [expression])
    return expression


def parse_calls(source: Source) -> list[ast.Call]:
    _check_length(source)
    tree = _parse(source, "\n".join(source.lines) + "\n", "exec")
    assert isinstance(tree, ast.Module)
    calls: list[ast.Call] = []
    mistakes: list[Mistake] = []
    for statement in tree.body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            calls.append(statement.value)
        else:
            node = statement.value if isinstance(statement, ast.Expr) else statement
            sentence = REFUSED.get(type(node), "a call is expected here, such as log('hello').")
            mistakes.append(source.mistake_at(node, sentence))
    if mistakes:
        raise ExpressionError(source.text, mistakes)
    if not calls:
        raise source.wrong("there is nothing here; a call is expected, such as log('hello').")
    _check(source, list(calls))
    return calls


def _check_length(source: Source) -> None:
    if not source.text.strip():
        raise source.wrong("there is nothing here; an expression is expected.")
    if len(source.text) > LONGEST_TEXT:
        raise source.wrong(f"this is longer than {LONGEST_TEXT:,} characters.")


def _parse(source: Source, text: str, mode: str) -> ast.AST:
    try:
        with warnings.catch_warnings():
            # What Python only frowns upon is a mistake here: '\d', '1if x else y'.
            warnings.simplefilter("error")
            return ast.parse(text, "<expression>", mode)
    except SyntaxError as error:
        raise _told(source, error) from None
    except (MemoryError, RecursionError):
        raise source.wrong(f"this is nested deeper than {DEEPEST} levels.") from None
    except FAILURES:
        raise source.wrong("this holds characters that no expression can have.") from None
    except Warning as warning:
        raise source.wrong(f"this is not Python's syntax: {warning}.") from None


def _told(source: Source, error: SyntaxError) -> ExpressionError:
    """What Python says about a text, in better words where it says little."""
    number = min(max(error.lineno or 1, 1), len(source.lines))
    line = source.lines[number - 1]
    # Offsets count characters from 1, and are 0 for what is missing at the end.
    before = source.before if number == 1 else 0
    start = (error.offset or 0) - 1 - before
    said = (error.msg or "").removeprefix("f-string: ")
    if not 0 <= start < len(line):
        start = len(line)
    if said.startswith("invalid syntax"):
        if start == len(line):
            said = "something is missing at the end"
        elif line[start] == "=":
            said = "nothing can be assigned; did you mean '=='?"
        else:
            said = "it makes no sense from here on"
    column = len(line[:start].encode("utf-8", "replace")) + before
    sentence = f"this is not Python's syntax: {said.rstrip('.')}"
    sentence += "" if sentence.endswith("?") else "."
    return ExpressionError(source.text, [source.mistake(number, column, sentence)])


def _is_torn(value: object) -> bool:
    """Is it a text with a lone surrogate, which nobody can send or write down?"""
    return type(value) is str and any("\ud800" <= character <= "\udfff" for character in value)


def _check(source: Source, roots: list[ast.expr]) -> None:
    """Is every node allowed, and are there not too many? Without recursion, since this is what
    makes recursion safe for those who come after."""
    mistakes: list[Mistake] = []
    waiting: list[tuple[ast.AST, ast.AST, int]] = [(root, root, 0) for root in reversed(roots)]
    nodes = 0
    while waiting:
        node, place, depth = waiting.pop()
        nodes += 1
        if hasattr(node, "lineno"):
            place = node
        if type(node) not in ALLOWED:
            name = type(node).__name__
            sentence = REFUSED.get(type(node), f"'{name}' is not part of the language.")
            mistakes.append(source.mistake_at(place, sentence))
            continue
        if depth > DEEPEST:
            raise source.wrong(f"this is nested deeper than {DEEPEST} levels.")
        if nodes > MOST_NODES:
            raise source.wrong(f"this has more than {MOST_NODES:,} parts.")
        if isinstance(node, ast.Constant) and _is_torn(node.value):
            mistakes.append(source.mistake_at(place, "this text holds half of a character."))
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, (ast.List, ast.Tuple, ast.Set, ast.Dict)) and (
            len(children) > 2 * LONGEST_LIST
        ):
            raise source.wrong(f"a list here has more than {LONGEST_LIST:,} elements.")
        waiting.extend((child, place, depth + 1) for child in reversed(children))
    if mistakes:
        raise ExpressionError(source.text, mistakes)
