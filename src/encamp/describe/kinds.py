"""The kinds of values that attributes have.

A kind reads a node: it checks it, reports what is wrong with it, and makes the value that the rest
of Encamp works with. It also tells an editor what it takes, as JSON Schema. What was checked here
and what an editor accepts therefore cannot drift apart.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from typing import Any, Protocol

from encamp.describe.nodes import (
    Mapping,
    Mistakes,
    Node,
    Scalar,
    Sequence,
    is_null,
    shape,
)

Schema = dict[str, Any]

REFERENCE: Schema = {"$ref": "#/$defs/reference"}


class Unusable(enum.Enum):
    """What reading a node gives if it gives no value."""

    WRONG = enum.auto()
    """It was reported."""
    OPEN = enum.auto()
    """It has references, which have no values yet."""


WRONG, OPEN = Unusable.WRONG, Unusable.OPEN


class Kind(Protocol):
    def read(self, node: Node, mistakes: Mistakes) -> Any:
        """The value, or why there is none."""

    def schema(self) -> Schema: ...

    @property
    def words(self) -> str:
        """What is expected, as in "... is expected"."""


class ListOf:
    """A list; one item may stand there without a list around it."""

    def __init__(self, item: Kind, *, most: int = 10_000):
        self.item = item
        self.most = most
        self.words = f"a list, of which each is {item.words.rstrip(',')},"

    def read(self, node: Node, mistakes: Mistakes) -> Any:
        if node.made_by is self:
            return node.made
        if type(node) is not Sequence:
            value = self.item.read(node, mistakes)
            return value if type(value) is Unusable else (value,)
        if len(node.items) > self.most:
            mistakes.at(node, f"this list has more than {self.most:,} items")
            return WRONG
        for item in node.items:
            if is_null(item):
                mistakes.at(item, "an item of a list cannot be null; leave it out")
                return WRONG
        values = tuple(self.item.read(item, mistakes) for item in node.items)
        if WRONG in values or OPEN in values:
            return WRONG if WRONG in values else OPEN
        node.made_by, node.made = self, values
        return values

    def schema(self) -> Schema:
        item = self.item.schema()
        return {"anyOf": [item, {"type": "array", "items": item, "maxItems": self.most}]}


class MapOf:
    """A mapping from names of the writer's own to values of one kind."""

    def __init__(self, name: str, names: str, item: Kind):
        """`name`: what one of the writer's names is for."""
        self.name = name
        self.words = f"a mapping from {name} to {item.words}"
        self.names = re.compile(names)
        self.item = item

    def read(self, node: Node, mistakes: Mistakes) -> Any:
        if node.made_by is self:
            return node.made
        if type(node) is not Mapping:
            return not_a_mapping(self, node, mistakes)
        values = {}
        state: Unusable | None = None
        for key, child in node.entries.items():
            if self.names.fullmatch(key) is None:
                mistakes.at_key(node, key, f"'{key}' is no name for {self.name}")
                state = WRONG
            elif not is_null(child):
                value = self.item.read(child, mistakes)
                if type(value) is Unusable:
                    state = WRONG if WRONG in (state, value) else OPEN
                else:
                    values[key] = value
        if state is not None:
            return state
        node.made_by, node.made = self, values
        return values

    def schema(self) -> Schema:
        item = {"anyOf": [self.item.schema(), {"type": "null"}]}
        pattern = f"^(?:{self.names.pattern})$"
        mapping = {"type": "object", "patternProperties": {pattern: item}}
        return {"anyOf": [{**mapping, "additionalProperties": False}, REFERENCE]}


class Anything:
    """Whatever the writer wants to refer to; it becomes no part of the environment."""

    words = "anything"

    def read(self, node: Node, mistakes: Mistakes) -> Any:
        return None

    def schema(self) -> Schema:
        return {}


class Either:
    """A simple form for what is usual, and another for what is not."""

    def __init__(self, simple: Kind, full: Kind):
        self.simple = simple
        self.full = full
        self.words = f"{simple.words} or {full.words}"

    def read(self, node: Node, mistakes: Mistakes) -> Any:
        kind = self.simple if type(node) is Scalar else self.full
        return kind.read(node, mistakes)

    def schema(self) -> Schema:
        return {"anyOf": [self.simple.schema(), self.full.schema()]}


class Made:
    """A kind whose value is turned into something else."""

    def __init__(self, kind: Kind, make: Callable[[Any], Any]):
        self.kind = kind
        self.make = make
        self.words = kind.words

    def read(self, node: Node, mistakes: Mistakes) -> Any:
        value = self.kind.read(node, mistakes)
        return value if type(value) is Unusable else self.make(value)

    def schema(self) -> Schema:
        return self.kind.schema()


def not_a_mapping(kind: Kind, node: Node, mistakes: Mistakes) -> Unusable:
    if type(node) is Scalar and node.refers:
        return OPEN
    mistakes.at(node, f"{kind.words} is expected here, not {shape(node)}")
    return WRONG
