"""What there is to know about a site: the kinds of things in it, and the type of each fact.

Expressions are checked against it when they are loaded.
"""

from __future__ import annotations

import enum
import re

import msgspec

from encamp.model.property import ValueKind

AGGREGATE = re.compile(
    r"(?:sum|mean|min|max)\((?P<thing>\w+)\.(?P<fact>\w+) for (?P=thing) in (?P<plural>\w+)\b"
)
"""What counts the same as what it was made from."""


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
    unit: str = ""
    """What a number counts: `bytes`."""


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

    def unit_of(self, text: str) -> str:
        """What is counted by what is read so, `host.memory_free` or `max(h.memory_free for h in
        hosts)`; empty: nothing that is known."""
        over_all = AGGREGATE.match(text)
        if over_all is not None:
            of = self.kind_of_plural(over_all["plural"])
            text = f"{of.name}.{over_all['fact']}" if of is not None else ""
        first, *names = text.split(".")
        kind, fact = self.kinds.get(first), None
        for name in names:
            fact = kind.facts.get(name) if kind is not None else None
            kind = self.kinds.get(fact.refers) if fact is not None else None
        return fact.unit if fact is not None else ""
