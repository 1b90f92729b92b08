"""How references are written: a text, cut into what stands there and what is referred to."""

from __future__ import annotations

import re

import msgspec

from encamp.describe.late import is_late_name, late_names
from encamp.describe.nodes import Mistakes, Scalar

PIECE = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
NAME = re.compile(r"[A-Za-z0-9_./-]+")
ESCAPE = "$${"


class Reference(msgspec.Struct, frozen=True):
    names: tuple[str, ...]
    ups: int = 0
    """How many mappings it climbs first."""
    late: bool = False
    text: str = ""
    """As it was written."""


class ReportedError(Exception):
    """There is no value, and it has been said why."""


def cut(node: Scalar, mistakes: Mistakes) -> list[str | Reference]:
    """The pieces of a text. There is at least one, since there is a reference in it."""
    pieces: list[str | Reference] = []
    end = 0
    text = node.text
    for match in PIECE.finditer(text):
        if match.start() > end:
            pieces.append(text[end : match.start()])
        end = match.end()
        if match[0] == ESCAPE:
            # What could be taken for a late reference stays escaped until late.
            pieces.append(ESCAPE if text.startswith("late.", end) else "${")
        elif match[1] is None:
            mistakes.at(
                node,
                "'${' begins a reference that does not end; a '}' is missing, or write '$${' for"
                " the characters '${'",
            )
            raise ReportedError
        else:
            pieces.append(_reference(match[1], match[0], node, mistakes))
    if end < len(text):
        pieces.append(text[end:])
    return pieces


def _reference(inner: str, text: str, node: Scalar, mistakes: Mistakes) -> Reference:
    names = tuple(inner.split("."))
    if not all(NAME.fullmatch(name) for name in names):
        mistakes.at(
            node,
            f"'{text}' is not a reference such as ${{memory}} or ${{debian12.memory}};"
            " write '$${' for the characters '${'",
        )
        raise ReportedError
    if names[0] == "late":
        return _late(inner.partition(".")[2], text, node, mistakes)
    ups = 0
    while ups < len(names) and names[ups] == "up":
        ups += 1
    if not names[ups:]:
        mistakes.at(node, f"'{text}' does not say what is wanted from up there")
        raise ReportedError
    return Reference(names[ups:], ups, text=text)


def _late(name: str, text: str, node: Scalar, mistakes: Mistakes) -> Reference:
    if is_late_name(name):
        return Reference((name,), late=True, text=text)
    near = mistakes.near(name, late_names())
    mistakes.at(node, f"no machine knows '{name}' of '{text}'{near}")
    raise ReportedError
