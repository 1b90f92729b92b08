"""Functions and methods: how many arguments each takes, and what checks them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from encamp.core.expressions import knowledge, numeric, texts
from encamp.core.expressions.language import (
    AGGREGATES,
    CALLABLE,
    FUNCTIONS,
    METHODS,
    Function,
)
from encamp.core.expressions.mistakes import near
from encamp.core.expressions.part import (
    BOOL,
    LIST,
    STR,
    Builder,
    Part,
)

if TYPE_CHECKING:
    from encamp.core.expressions.compiler import Compiler


def call(compiler: Compiler, node: ast.Call) -> Part:
    if isinstance(node.func, ast.Name):
        name, arguments = node.func.id, list(node.args)
        if any(name in scope for scope in compiler.scopes) or name not in CALLABLE:
            return compiler.mistake(
                node.func, f"there is no function '{name}'{near(name, CALLABLE)}"
            )
        takes = 1 if name in METHODS else 0
    elif isinstance(node.func, ast.Attribute):
        name, arguments = node.func.attr, [node.func.value, *node.args]
        if name not in METHODS:
            return compiler.mistake(node.func, f"there is no method '{name}'{near(name, METHODS)}")
        takes = 1
    else:
        return compiler.mistake(node, "only functions can be called.")
    if node.keywords:
        return compiler.mistake(node, f"{name}() takes no arguments by name.")
    least, most = COUNTS.get(name, (1, 1))
    if not least <= len(arguments) - takes <= most:
        described: Function = ({**AGGREGATES, **FUNCTIONS, **METHODS})[name]
        return compiler.mistake(node, f"'{name}' is written {described.usage}.")
    return BUILDERS[name](compiler, node, arguments)


COUNTS = {
    "round": (1, 2),
    "matches": (2, 2),
    "min": (1, 50),
    "max": (1, 50),
    "startswith": (1, 1),
    "endswith": (1, 1),
    "lower": (0, 0),
    "upper": (0, 0),
    "strip": (0, 0),
    "removeprefix": (1, 1),
    "removesuffix": (1, 1),
    "split": (0, 1),
    "join": (1, 1),
}
"""How many arguments each takes, if not one; for methods, besides the text."""

BUILDERS: dict[str, Builder] = {
    "group": knowledge.group,
    "known": knowledge.known,
    "changed": knowledge.changed,
    "previous": knowledge.previous,
    "matches": texts.matches,
    "round": numeric.round_of,
    "abs": numeric.abs_of,
    "int": numeric.converted(int),
    "float": numeric.converted(float),
    "str": texts.str_of,
    "bool": numeric.bool_of,
    "min": numeric.extreme("min", min),
    "max": numeric.extreme("max", max),
    **{name: numeric.aggregate(name) for name in ("count", "sum", "mean", "any", "all", "len")},
    **{name: texts.method(name, BOOL) for name in ("startswith", "endswith")},
    **{
        name: texts.method(name, STR)
        for name in ("lower", "upper", "strip", "removeprefix", "removesuffix")
    },
    "split": texts.method("split", LIST),
    "join": texts.join,
}
