"""Facts that are one of a few words. Comparing one with any other text is a mistake: it would never
be equal, and a trigger that waits for it would wait in silence."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from encamp.core.expressions.part import Part

if TYPE_CHECKING:
    from encamp.core.expressions.compiler import Compiler

NEAR = 0.7
"""How alike a word must be to be suggested. Words are short: below this 'gone' is like 'joined'."""


def is_never(compiler: Compiler, fact: Part, other: Part) -> bool:
    """Tells of each text in `other`, a constant or a list of some, that the fact never is."""
    if fact.fact is None:
        return False
    kind, name = fact.fact
    words = compiler.schema.kinds[kind].facts[name].words
    wrong = [(node, text) for node, text in _texts(other) if words and text not in words]
    for node, text in wrong:
        compiler.mistake(node, f"a {kind}'s {name} is never {text!r:.80}{_ending(text, words)}")
    return bool(wrong)


def _texts(part: Part) -> Iterator[tuple[ast.AST, str]]:
    """Texts that are written there, each with its place."""
    if isinstance(part.node, (ast.List, ast.Tuple, ast.Set)):
        for element in part.node.elts:
            if isinstance(element, ast.Constant) and type(element.value) is str:
                yield element, element.value
    elif part.constant:
        values = part.value if type(part.value) in (list, tuple) else [part.value]
        for value in values:
            if type(value) is str:
                yield part.node, value


def _ending(text: str, words: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(text[:100], words, n=1, cutoff=NEAR)
    listed = ", ".join(words)
    if near:
        return f"; did you mean '{near[0]}'? It is one of: {listed}."
    return f"; it is one of: {listed}."
