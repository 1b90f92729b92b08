"""Late references: what only a machine that exists can tell.

`${late.machine.address}` stays as it is while environments are resolved, and is replaced when a
machine is handed its context.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from encamp.model.environment import Context, Readiness
from encamp.model.errors import Code, EncampError

LATE = re.compile(r"(\$?)\$\{late\.([^{}]*)\}")

MACHINE = ("id", "name", "address", "environment", "host")
OWNER = ("name", "uid", "gid", "group", "home")
KNOWN = {
    **{f"machine.{fact}": "" for fact in MACHINE},
    **{f"owner.{fact}": "" for fact in OWNER},
}
PEER = re.compile(r"peers\.([A-Za-z][A-Za-z0-9-]*)\.(id|name|address)")

Handed = TypeVar("Handed", Context, Readiness)


def is_late_name(name: str) -> bool:
    """Will a machine be able to tell this? `name` is what follows `late.`."""
    return name in KNOWN or PEER.fullmatch(name) is not None


def late_names() -> list[str]:
    """What can be referred to, for a person who got it wrong."""
    return [*KNOWN, "peers.NAME.address", "peers.NAME.id", "peers.NAME.name"]


def late_references(value: object) -> list[str]:
    """The names of all late references in a text, a context, or whatever else holds texts."""
    found: dict[str, None] = {}
    for text in _texts(msgspec.to_builtins(value)):
        for escaped, name in LATE.findall(text):
            if not escaped:
                found[name] = None
    return list(found)


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    children = value.values() if isinstance(value, dict) else value
    if isinstance(value, (dict, list, tuple)):
        return [text for child in children for text in _texts(child)]
    return []


def resolve_text(text: str, facts: Mapping[str, str]) -> str:
    """The text with what the machine knows in place of its late references."""
    if "${late." not in text:
        return text

    def replaced(match: re.Match[str]) -> str:
        escaped, name = match.groups()
        if escaped:
            return match[0][1:]
        fact = facts.get(name)
        if not fact:
            raise EncampError(
                Code.CONFIGURATION,
                f"'${{late.{name}}}' has no value: {_why(name)}",
                "'encamp env show NAME --resolved' tells where it is written.",
            )
        return fact

    return LATE.sub(replaced, text)


def _why(name: str) -> str:
    if name.startswith("peers."):
        return f"there is no peer '{name.split('.')[1]}': a machine that is made alone has none."
    if name.endswith(".address"):
        return "the machine has no address. Its network may be 'none'."
    return "the machine does not know it."


def resolve_late(handed: Handed, facts: Mapping[str, str]) -> Handed:
    """A context or a test of readiness with all late references replaced.

    `facts` are named as in references: `machine.name`, `owner.uid`, `peers.db.address`."""

    def walk(value: Any) -> Any:
        if isinstance(value, str):
            return resolve_text(value, facts)
        if isinstance(value, tuple):
            return tuple(walk(item) for item in value)
        if isinstance(value, dict):
            return {key: walk(item) for key, item in value.items()}
        if isinstance(value, msgspec.Struct):
            fields = {name: walk(getattr(value, name)) for name in value.__struct_fields__}
            return type(value)(**fields)
        return value

    resolved: Handed = walk(handed)
    return resolved
