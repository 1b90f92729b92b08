"""Environments as a person reads them: as they were written, and resolved with where each value
comes from. What is shown resolved is itself a description, which loads and means the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from encamp.describe.attributes import ENVIRONMENT, IMAGE_RECORD, NOT_INHERITED, ORIGINS
from encamp.describe.library import Library
from encamp.describe.nodes import Mapping, Node, Scalar, Sequence
from encamp.describe.records import Record
from encamp.describe.sources import NOWHERE
from encamp.describe.words import HostPath
from encamp.model.machine import Share

PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./@+:=-]*(?<!:)")
"""Texts that mean the same to every reader of YAML with and without quotes, if they had none."""

UNPRINTABLE = re.compile(
    "[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)

BUILT = ("kernel", "compression")
"""Defaults that matter to images which are built from packages."""

DEFAULT = "default"


class Line(msgspec.Struct):
    """A value, where it stands in the environment, and where it comes from."""

    path: tuple[str, ...]
    value: Any
    """Text, or a list of texts."""
    origin: str
    written: str
    """As YAML."""


def as_written(library: Library, name: str) -> str:
    """The lines of its file that describe an environment."""
    description = library.described[name]
    lines = Path(description.source.file).read_text().splitlines()
    following = [
        other.line
        for other in library.described.values()
        if other.source is description.source and other.line > description.line
    ]
    end = min(following, default=len(lines) + 1) - 1
    block = lines[description.line - 1 : end]
    while block and (not block[-1].strip() or block[-1].startswith("#")):
        block.pop()
    return "\n".join(block)


def resolved(library: Library, name: str) -> list[Line]:
    """Every attribute that an environment has, by itself, by inheritance or by default."""
    environment = library.environment(name)
    settled = library.settled(name)
    lines: list[Line] = []
    for attribute in ENVIRONMENT.attributes:
        node = settled.entries.get(attribute)
        if attribute in NOT_INHERITED or attribute == "values":
            continue
        if attribute == "image" and isinstance(node, Mapping):
            image = environment.image if environment is not None else None
            lines += _image(node, getattr(image, "name", name))
        else:
            lines += _attribute((attribute,), node, ENVIRONMENT)
    return lines


def as_yaml(name: str, lines: list[Line]) -> str:
    """The lines as a description, with comments that say where each value comes from."""
    shown = [f"{name}:"]
    open_path: tuple[str, ...] = ()
    texts = []
    for line in lines:
        *around, key = line.path
        for depth, step in enumerate(around):
            if open_path[: depth + 1] != tuple(around[: depth + 1]):
                texts.append((f"{'  ' * (depth + 1)}{step}:", ""))
        open_path = tuple(around)
        indent = "  " * len(line.path)
        texts.append((f"{indent}{key}: {line.written}", line.origin))
    width = min(60, max((len(text) for text, origin in texts if origin), default=0))
    shown += [f"{text:{width}}  # {origin}" if origin else text for text, origin in texts]
    return "\n".join(shown)


def _image(node: Mapping, name: str) -> Iterator[Line]:
    built = node.entries.keys() & {"debian", "mini", "oci", "rootfs"}
    # What is only there to be extended may leave it to its heirs what they start from.
    begun = not ORIGINS.keys().isdisjoint(node.entries)
    for attribute in IMAGE_RECORD.attributes:
        child = node.entries.get(attribute)
        if begun and child is None and attribute == "name":
            yield Line(("image", "name"), name, DEFAULT, name)
        elif child is not None or (built and attribute in BUILT):
            yield from _attribute(("image", attribute), child, IMAGE_RECORD)


def _attribute(path: tuple[str, ...], node: Node | None, record: Record) -> Iterator[Line]:
    attribute = record.attributes[path[-1]]
    if isinstance(attribute.kind, Record):
        for name in attribute.kind.attributes:
            child = node.entries.get(name) if isinstance(node, Mapping) else None
            yield from _attribute((*path, name), child, attribute.kind)
    elif node is not None:
        yield from _node(path, node)
    elif attribute.default is not None:
        yield Line(path, attribute.default, DEFAULT, attribute.default)


def _node(path: tuple[str, ...], node: Node) -> Iterator[Line]:
    if isinstance(node, Mapping):
        for key, child in node.entries.items():
            yield from _node((*path, key if _is_safe(key) else _quoted(key)), child)
    else:
        yield Line(path, _value(node), _where(node), _flow(node))


def _is_safe(key: str) -> bool:
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", key) is not None and not re.fullmatch(
        r"(?i)null|true|false|yes|no|on|off|y|n", key
    )


def _value(node: Node) -> Any:
    if isinstance(node, Scalar):
        return _text(node)
    if isinstance(node, Sequence):
        return [_value(item) for item in node.items]
    return {key: _value(child) for key, child in node.entries.items()}


def _flow(node: Node) -> str:
    """A node in YAML on one line."""
    if isinstance(node, Sequence):
        return f"[{', '.join(_flow(item) for item in node.items)}]"
    if isinstance(node, Mapping):
        pairs = (f"{_quoted(key)}: {_flow(child)}" for key, child in node.entries.items())
        return f"{{{', '.join(pairs)}}}"
    text = _text(node)
    if node.settled:
        text = re.sub(r"\$\{(?!late\.)", "$${", text)
    plain = node.plain and text == node.text and PLAIN.fullmatch(text)
    return text if plain else _quoted(text)


def _text(node: Scalar) -> str:
    """A value that means the same wherever it is read."""
    if node.made is not None:
        value = node.made
        if isinstance(node.made_by, HostPath):
            return str(value)
        if isinstance(value, Share):
            parts = [re.sub(r"([:\\])", r"\\\1", part) for part in (value.source, value.path)]
            return ":".join([*parts, "ro"] if value.readonly else parts)
    return node.text


def _quoted(text: str) -> str:
    def escaped(match: re.Match[str]) -> str:
        code = ord(match[0])
        return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"

    return UNPRINTABLE.sub(escaped, json.dumps(text, ensure_ascii=False))


def _where(node: Node) -> str:
    if node.source is NOWHERE:
        return DEFAULT
    if isinstance(node, Sequence) and node.joined:
        return ", ".join(_where(part) for part in node.joined)
    return f"{node.source.path}:{node.line}:{node.column}"
