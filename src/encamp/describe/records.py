"""Records: mappings whose names are fixed, each with its own kind of value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from encamp.describe.kinds import (
    OPEN,
    WRONG,
    Either,
    Kind,
    ListOf,
    Made,
    Schema,
    Unusable,
    not_a_mapping,
)
from encamp.describe.nodes import Mapping, Mistakes, Node, Scalar, is_null

ADD = "+"
"""After the name of a list: add to what is inherited instead of replacing it."""

MOST_NAMED = 4
"""Attributes that are named where a mapping is missing."""


class Attribute(msgspec.Struct, frozen=True):
    kind: Kind
    about: str
    """What it is for: the line in the table of attributes."""
    default: str | None = None
    """What it is if nobody says, as it would be written; for references and for people."""
    trusted: bool = False
    """May only administrators write it?"""

    @property
    def is_list(self) -> bool:
        return _is_list(self.kind)


def _is_list(kind: Kind) -> bool:
    if isinstance(kind, Made):
        return _is_list(kind.kind)
    return isinstance(kind, ListOf) or (isinstance(kind, Either) and _is_list(kind.full))


class Record:
    """A mapping with known names; `make` turns its values into what is worked with."""

    def __init__(
        self,
        name: str,
        attributes: dict[str, Attribute],
        make: Callable[..., Any] = dict,
        *,
        required: tuple[str, ...] = (),
        one_of: tuple[str, ...] = (),
    ):
        """`name`: what it is called where something is wrong in it."""
        self.name = name
        self.attributes = attributes
        self.make = make
        self.required = required
        self.one_of = one_of
        """Of these, exactly one."""
        self.words = f"a mapping with {_listed([*required, *attributes])}"

    def read(self, node: Node, mistakes: Mistakes) -> Any:
        if node.made_by is self:
            return node.made
        if type(node) is not Mapping:
            return not_a_mapping(self, node, mistakes)
        values: dict[str, Any] = {}
        state: Unusable | None = None
        for key, child in node.entries.items():
            attribute = self.attributes.get(key)
            if attribute is not None and child.made_by is attribute.kind:
                values[key] = child.made
                continue
            value = self.entry(node, key, child, mistakes)
            if type(value) is Unusable:
                state = WRONG if WRONG in (state, value) else OPEN
            elif value is not None:
                values[key.removesuffix(ADD)] = value
        if not self._complete(node, mistakes):
            state = WRONG
        if state is not None:
            return state
        value = self.make(**values)
        node.made_by, node.made = self, value
        return value

    def entry(self, node: Mapping, key: str, child: Node, mistakes: Mistakes) -> Any:
        """The value of one attribute; None if it was said to have none."""
        attribute = self.attributes.get(key)
        if attribute is None:
            attribute = self.attributes.get(key[:-1]) if key.endswith(ADD) else None
            wrong = self._strange(key, node, attribute, mistakes)
            if wrong or attribute is None:
                mistakes.at_key(node, key, wrong)
                return WRONG
        if attribute.trusted and not child.source.level.trusted:
            mistakes.at_key(
                node, key, f"'{key}' may only be written in the files of the site's administrators"
            )
            return WRONG
        if type(child) is Scalar and child.plain and not child.settled:
            if not child.text:
                mistakes.at_key(
                    node,
                    key,
                    f"'{key}' has no value: {attribute.kind.words} is expected"
                    " (null: back to the default)",
                )
                return WRONG
            if is_null(child):
                return None
        return attribute.kind.read(child, mistakes)

    def _strange(
        self, key: str, node: Mapping, attribute: Attribute | None, mistakes: Mistakes
    ) -> str:
        """What is wrong with a key that is no attribute's name; nothing, if it adds to a list."""
        if key == "<<":
            return "'<<' is not part of this language: 'extends' inherits from an environment"
        if attribute is None:
            near = mistakes.near(key.removesuffix(ADD), self.attributes)
            return f"there is no attribute '{key}' in {self.name}{near}"
        if not attribute.is_list:
            return f"'{key}': only lists can be added to, and '{key[:-1]}' is none"
        if key[:-1] in node.entries:
            return f"'{key[:-1]}' is given here too: put the items into one list"
        return ""

    def _complete(self, node: Mapping, mistakes: Mistakes) -> bool:
        said = {name for name, child in node.entries.items() if not is_null(child)}
        missing = [name for name in self.required if name not in said]
        if missing:
            mistakes.at(node, f"'{missing[0]}' is missing: {self.name} needs it")
        given = [name for name in self.one_of if name in said]
        if self.one_of and len(given) != 1:
            names = " or ".join(f"'{name}'" for name in self.one_of)
            mistakes.at(node, f"either {names} is needed, and not more than one of them")
        return not missing and (not self.one_of or len(given) == 1)

    def schema(self) -> Schema:
        properties: Schema = {}
        for name, attribute in self.attributes.items():
            kind = attribute.kind.schema()
            about = {"description": attribute.about}
            properties[name] = {**about, "anyOf": [kind, {"type": "null"}]}
            if attribute.is_list:
                properties[name + ADD] = {"description": f"Added to '{name}'.", **kind}
        made: Schema = {
            "type": "object",
            "properties": properties,
            "additionalProperties": False,
        }
        if self.required:
            made["required"] = list(self.required)
        if self.one_of:
            made["oneOf"] = [{"required": [name]} for name in self.one_of]
        return made


def _listed(names: list[str]) -> str:
    """The first of them, each once."""
    known = list(dict.fromkeys(names))
    if len(known) > MOST_NAMED:
        return f"{', '.join(known[:MOST_NAMED])} and so on"
    return " and ".join(filter(None, (", ".join(known[:-1]), known[-1])))
