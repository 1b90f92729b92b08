"""From the bytes of a YAML file to nodes that know where they were written.

PyYAML's C parser is used event by event, which costs a tenth of what its own trees cost and lets
us stop as soon as a file goes too far: nothing here grows faster than the file itself, and what
aliases would make of it is counted instead of made.
"""

from __future__ import annotations

import re
from typing import Any

from encamp.describe.nodes import COLUMN_BITS, Mapping, Mistakes, Node, Scalar, Sequence
from encamp.describe.sources import Source

LARGEST_FILE = 16 * 1024 * 1024
DEEPEST = 40
"""Levels of nesting; the language itself needs seven."""
HEAVIEST = 2_000_000
"""Nodes of one file, with every alias written out."""

NOT_A_NAME = re.compile(
    r"|~|null|Null|NULL|true|True|TRUE|false|False|FALSE"
    r"|[-+]?[0-9][0-9_]*(\.[0-9]*)?([eE][-+]?[0-9]+)?|0o[0-7]+|0x[0-9a-fA-F]+"
)
"""Plain keys that YAML takes for something else than text."""

TAB = "a tab; indent with spaces"


def read_mapping(source: Source, data: bytes, mistakes: Mistakes) -> Mapping | None:
    """The mapping a file consists of; None if it cannot be read as one, which is reported."""
    if len(data) > LARGEST_FILE:
        mistakes.add(source, 1, 1, f"the file is larger than {LARGEST_FILE >> 20} MiB")
        return None
    try:
        data.decode()
    except UnicodeDecodeError as error:
        line, column = position(data, error.start)
        mistakes.add(source, line, column, "this is not UTF-8 text")
        return None
    reader = _Reader(source, mistakes)
    return reader.read(data)


def position(data: bytes, offset: int) -> tuple[int, int]:
    """Line and column of a byte."""
    before = data[:offset]
    column = len(before[before.rfind(b"\n") + 1 :].decode(errors="replace")) + 1
    return before.count(b"\n") + 1, column


class _TooMuchError(Exception):
    """Reported already; there is no use in reading on."""


class _Reader:
    def __init__(self, source: Source, mistakes: Mistakes) -> None:
        self.source = source
        self.mistakes = mistakes
        self.anchors: dict[str, Node] = {}
        self.names: set[str] = set()
        """Keys that were seen and are fine."""

    def read(self, data: bytes) -> Mapping | None:
        import yaml
        import yaml.reader

        try:
            parser = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
            root = self._documents(parser(data))
        except yaml.reader.ReaderError as error:
            # PyYAML's types leave out what its C parser says.
            offset: Any = error.position
            line, column = position(data, int(offset))
            self.mistakes.add(self.source, line, column, "a control character is not allowed here")
            return None
        except yaml.MarkedYAMLError as error:
            self._syntax(error, data)
            return None
        except _TooMuchError:
            return None
        if root is None:
            return Mapping({}, {}, 1, 1, self.source)
        if not isinstance(root, Mapping):
            self.mistakes.at(root, "a mapping of names is expected here")
            return None
        return root

    def _syntax(self, error: Any, data: bytes) -> None:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line, mark.column) if mark is not None else (0, 0)
        lines = data.decode().split("\n")
        here = lines[line][column : column + 1] if line < len(lines) else ""
        what = TAB if here == "\t" else f"this is not YAML: {error.problem}"
        if error.context and what is not TAB:
            what += f", {error.context}"
        self.mistakes.add(self.source, line + 1, column + 1, what)

    def _documents(self, parser: Any) -> Node | None:
        from yaml import events

        root: Node | None = None
        seen = 0
        while True:
            event = parser.get_event()
            kind = type(event)
            if kind is events.StreamEndEvent:
                return root
            if kind is not events.DocumentStartEvent:
                continue
            seen += 1
            if seen > 1:
                mark = event.start_mark
                self.mistakes.add(
                    self.source, mark.line + 1, mark.column + 1, "a second document begins here"
                )
                raise _TooMuchError
            root = self._document(parser)

    def _document(self, parser: Any) -> Node | None:
        """One document, without recursion: the depth of a file is not the depth of our stack."""
        from yaml import events

        scalar, alias = events.ScalarEvent, events.AliasEvent
        start_mapping, start_sequence = events.MappingStartEvent, events.SequenceStartEvent
        end_document = events.DocumentEndEvent
        source, mistakes = self.source, self.mistakes
        get_event = parser.get_event
        names = self.names
        open_nodes: list[Mapping | Sequence] = []
        open_keys: list[Scalar | None] = []
        around: Mapping | Sequence | None = None
        key: Scalar | None = None
        total = 0
        while True:
            event = get_event()
            kind = type(event)
            node: Node
            if kind is scalar:
                mark = event.start_mark
                node = Scalar(event.value, not event.style, mark.line + 1, mark.column + 1, source)
                if event.tag is not None or event.anchor is not None:
                    self._decorated(event, node)
                if key is None and type(around) is Mapping:
                    key = node if node.text in names else self._key(node)
                    continue
            elif kind is start_mapping or kind is start_sequence:
                mark = event.start_mark
                if kind is start_mapping:
                    node = Mapping({}, {}, mark.line + 1, mark.column + 1, source)
                else:
                    node = Sequence([], mark.line + 1, mark.column + 1, source)
                if event.tag is not None or event.anchor is not None:
                    self._decorated(event, node)
                if len(open_nodes) >= DEEPEST:
                    mistakes.at(node, f"this is nested more than {DEEPEST} levels deep")
                    raise _TooMuchError
                open_nodes.append(node)
                open_keys.append(key)
                around, key = node, None
                continue
            elif kind is alias:
                node = self._alias(event, open_nodes)
            elif kind is end_document:
                return None
            else:
                node = open_nodes.pop()
                key = open_keys.pop()
                if not open_nodes:
                    return node
                around = open_nodes[-1]
            if around is None:
                return node
            if type(node) is Scalar:
                weight, refers = 1, "${" in node.text
            else:
                weight, refers = node.weight, node.refers
            # What is inside a mapping or list was counted on its own, unless it is an alias.
            total += weight if kind is alias else 1
            if total > HEAVIEST:
                mistakes.at(
                    node,
                    f"the file describes more than {HEAVIEST:,} values, counting"
                    " what its aliases (*) repeat",
                )
                raise _TooMuchError
            if isinstance(around, Sequence):
                around.items.append(node)
            elif key is None:
                key = self._key(node)
                continue
            else:
                name = key.text
                if name in around.entries:
                    self._twice(around, key)
                else:
                    around.entries[name] = node
                    around.keys[name] = key.line << COLUMN_BITS | key.column
                key = None
            around.weight += weight
            if refers:
                around.refers = True

    def _decorated(self, event: Any, node: Node) -> None:
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            self.mistakes.at(node, f"the tag {tag} is not part of this language; leave it out")
        if event.anchor is not None:
            self.anchors[event.anchor] = node

    def _alias(self, event: Any, open_nodes: list[Mapping | Sequence]) -> Node:
        """What an alias stands for; one inside what it stands for would never end."""
        node = self.anchors.get(event.anchor)
        if node is not None and not any(node is other for other in open_nodes):
            return node
        wrong = "nothing before this is called" if node is None else "this is part of"
        mark = event.start_mark
        here = Scalar("", False, mark.line + 1, mark.column + 1, self.source)
        self.mistakes.at(here, f"*{event.anchor}: {wrong} &{event.anchor}")
        return here

    def _key(self, node: Node) -> Scalar:
        if not isinstance(node, Scalar):
            self.mistakes.at(node, "a name is expected here, not " + _article(node))
            return Scalar("", False, node.line, node.column, self.source)
        if not node.plain or not NOT_A_NAME.fullmatch(node.text):
            self.names.add(node.text)
        else:
            what = f"'{node.text}'" if node.text else "nothing"
            self.mistakes.at(
                node, f"a name is expected here, not {what}; if it is one, write it in quotes"
            )
        return node

    def _twice(self, mapping: Mapping, key: Scalar) -> None:
        line, column = mapping.where(key.text)
        self.mistakes.at(key, f"'{key.text}' was given already, at line {line}, column {column}")


def _article(node: Node) -> str:
    return "a mapping" if isinstance(node, Mapping) else "a list"
