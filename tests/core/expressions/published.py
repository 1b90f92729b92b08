"""The tables of docs/expressions.md, made from the tables that the compiler goes by."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from encamp.core.expressions import language
from encamp.core.kinds import schema_of


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _functions(functions: Mapping[str, language.Function]) -> str:
    return _table(
        ("function", "what", "example"),
        (
            (
                ", ".join(f"`{usage}`" for usage in function.usage.split("  ")),
                function.help,
                f"`{function.example}`",
            )
            for function in functions.values()
        ),
    )


def _words() -> str:
    return _table(
        ("fact", "is one of"),
        (
            (f"`{kind.name}.{name}`", ", ".join(f"`{word}`" for word in fact.words))
            for kind in schema_of(()).kinds.values()
            for name, fact in kind.facts.items()
            if fact.words
        ),
    )


def _facts() -> str:
    return _table(
        ("fact", "type", "what it is"),
        (
            (f"`{kind.name}.{name}`", fact.type.value, fact.help)
            for kind in schema_of(()).kinds.values()
            for name, fact in kind.facts.items()
        ),
    )


def tables() -> dict[str, str]:
    """By the headings under which they stand."""
    symbols = [*language.BINARY.values(), *language.COMPARISONS.values(), *language.UNARY.values()]
    syntax = _table(
        ("syntax", "what"),
        ((f"`{node.__name__}`", words) for node, words in language.SYNTAX.items()),
    )
    operators = ", ".join(f"`{symbol}`" for symbol in dict.fromkeys([*symbols, "and", "or"]))
    return {
        "Things and their facts": _words(),
        "Facts of each kind": _facts(),
        "Aggregates": _functions(language.AGGREGATES),
        "Functions": _functions(language.FUNCTIONS),
        "Texts": _functions(language.METHODS),
        "Time": _table(
            ("name", "value"), ((f"`{name}`", words) for name, (_, words) in language.TIMES.items())
        ),
        "Bounds": _table(
            ("of", "at most"), ((what, f"{most:,}") for what, most in language.LIMITS.items())
        ),
        "The whitelist": f"{syntax}\n\nOperators: {operators}.",
    }


if __name__ == "__main__":
    for heading, table in tables().items():
        sys.stdout.write(f"## {heading}\n\n{table}\n\n")
