"""What was written, and where: the nodes of a description, and the mistakes found in it.

Nodes never lead back to themselves, so that Python's garbage collector can leave them alone.

Values stay text until the attribute they belong to says what they are. So `version: 1.10` is
"1.10", `NO: no` is "no", and nobody has to know what YAML would have made of it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from encamp.describe.sources import Source
from encamp.model.errors import Code, EncampError

SHOWN_MISTAKES = 200
"""A file that is wrong throughout is not told about without end."""

LONGEST = 500
"""Characters of what is told about one mistake."""

COMPARISONS = 100_000
"""Names that are compared to find the nearest, in all. Whoever has that many wrong needs another
kind of help, and does not want to wait for it."""

FEW = 20

NULLS = frozenset({"null", "~", "Null", "NULL"})


COLUMN_BITS = 32
"""A key's position is one number, its line and in so many bits its column: a large file has very
many keys, and pairs would have Python's garbage collector look at each of them."""


class Scalar(msgspec.Struct, eq=False, gc=False):
    text: str
    plain: bool
    """Written without quotes."""
    line: int
    column: int
    source: Source
    made_by: object = None
    """The kind that has read it, and"""
    made: Any = None
    """what it made of it."""
    settled: bool = False
    """Its references have been replaced; what looks like one now is text."""
    base: Source | None = None
    """Where it was copied from, if by reference: its relative paths start there."""

    @property
    def refers(self) -> bool:
        return not self.settled and "${" in self.text

    @property
    def weight(self) -> int:
        return 1


class Sequence(msgspec.Struct, eq=False, gc=False):
    items: list[Scalar | Sequence | Mapping]
    line: int
    column: int
    source: Source
    refers: bool = False
    """Is there a reference somewhere inside?"""
    weight: int = 1
    """How many nodes it is when every alias is written out."""
    made_by: object = None
    made: Any = None
    joined: tuple[Scalar | Sequence | Mapping, ...] = ()
    """What it was put together from, if one list was added to another."""


class Mapping(msgspec.Struct, eq=False, gc=False):
    entries: dict[str, Scalar | Sequence | Mapping]
    keys: dict[str, int]
    """Where each key stands: see `position`."""
    line: int
    column: int
    source: Source
    refers: bool = False
    weight: int = 1
    made_by: object = None
    made: Any = None

    def where(self, key: str) -> tuple[int, int]:
        """Line and column of a key."""
        position = self.keys.get(key)
        if position is None:
            return self.line, self.column
        return position >> COLUMN_BITS, position & ((1 << COLUMN_BITS) - 1)


Node = Scalar | Sequence | Mapping


def is_null(node: Node) -> bool:
    """Was nothing asked for in so many words?"""
    return type(node) is Scalar and node.plain and node.text in NULLS


def shape(node: Node) -> str:
    """What a node is, for a person."""
    if isinstance(node, Mapping):
        return "a mapping"
    if isinstance(node, Sequence):
        return "a list"
    if node.plain and not node.text:
        return "nothing"
    short = node.text if len(node.text) <= 60 else f"{node.text[:57]}..."
    return repr(short)


class Mistake(msgspec.Struct, frozen=True, order=True):
    path: str
    line: int
    column: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.text}"


class Mistakes:
    """Collects all there are, each once, however many environments inherit it."""

    def __init__(self) -> None:
        self.found: dict[Mistake, Source] = {}
        self.strangers: set[Mistake] = set()
        """Those about environments that no file read here describes; a site's manager may."""
        self.comparisons = COMPARISONS

    def __bool__(self) -> bool:
        return bool(self.found)

    def add(self, source: Source, line: int, column: int, text: str) -> Mistake:
        if len(text) > LONGEST:
            text = f"{text[: LONGEST - 3]}..."
        if not text.isprintable():
            # What was written must not draw on whoever's terminal it is shown on.
            text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
        mistake = Mistake(source.path, line, column, text)
        self.found.setdefault(mistake, source)
        return mistake

    def at(self, node: Node, text: str) -> Mistake:
        return self.add(node.source, node.line, node.column, text)

    def at_key(self, mapping: Mapping, key: str, text: str) -> None:
        line, column = mapping.where(key)
        self.add(mapping.source, line, column, text)

    def near(self, name: str, known: Collection[str]) -> str:
        """A hint with the nearest of the known names, or with all if they are few."""
        if not known or len(name) > 100:
            return ""
        self.comparisons -= len(known)
        if self.comparisons < 0:
            return ""
        import difflib

        near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        if near:
            return f"; did you mean '{near[0]}'?"
        return f"; there are: {', '.join(sorted(known))}" if len(known) <= FEW else ""

    def without_strangers(self) -> list[Mistake]:
        """Those that are mistakes whatever a site describes."""
        return sorted(self.found.keys() - self.strangers)

    def of(self, sources: set[Source]) -> Mistakes:
        """Those in some of the files only."""
        chosen = Mistakes()
        chosen.found = {found: source for found, source in self.found.items() if source in sources}
        return chosen

    def raise_any(self) -> None:
        if self.found:
            raise self.error()

    def error(self) -> EncampError:
        found = sorted(self.found)
        lines = [str(mistake) for mistake in found[:SHOWN_MISTAKES]]
        if len(found) > len(lines):
            lines.append(f"... and {len(found) - len(lines)} more")
        paths = sorted({mistake.path for mistake in found})
        count = "a mistake" if len(found) == 1 else f"{len(found)} mistakes"
        where = paths[0] if len(paths) == 1 else f"{len(paths)} files"
        return EncampError(
            Code.CONFIGURATION,
            f"There {'is' if len(found) == 1 else 'are'} {count} in {where}.",
            "Each mistake is told with its place, and what is expected there.",
            detail="\n".join(lines),
        )
