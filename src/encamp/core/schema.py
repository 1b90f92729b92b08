"""What there is to know about a site: the kinds of things in it, and the type of each fact.

Expressions are checked against it when they are loaded.
"""

from __future__ import annotations

import enum

import msgspec

from encamp.model.property import ValueKind


class Type(enum.Enum):
    """The type of a value in an expression."""

    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    STR = "str"
    LIST = "list"
    DICT = "dict"
    ANY = "any"
    """Known only when it is there: an element of a list, a property of several types."""


OF_VALUE = {kind: Type(kind.value) for kind in ValueKind}


class Fact(msgspec.Struct, frozen=True):
    """One thing to know about every thing of a kind."""

    type: Type
    help: str = ""
    refers: str = ""
    """The kind of thing it is the key of: `machine.host.load1` works."""
    words: tuple[str, ...] = ()
    """A text that is always one of these; empty: any text."""


class Kind(msgspec.Struct, frozen=True):
    """A kind of things: hosts, machines, commands, jobs, environments."""

    name: str
    """As one of them is called in expressions: `host`."""
    plural: str
    """As all of them are called: `hosts`."""
    facts: dict[str, Fact]
    key: str = "name"
    """The fact that tells them apart."""


class Schema(msgspec.Struct, frozen=True):
    kinds: dict[str, Kind]
    """By their names in the singular."""
    groups: frozenset[str] = frozenset()
    """Groups of hosts that are known: `group('workers')`."""

    def kind_of_plural(self, plural: str) -> Kind | None:
        return next((kind for kind in self.kinds.values() if kind.plural == plural), None)
