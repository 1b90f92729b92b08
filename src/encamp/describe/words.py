"""The simple kinds of values: texts, numbers, sizes, times, choices, paths."""

from __future__ import annotations

import enum
import os.path
import re
from collections.abc import Iterable
from typing import Any

from encamp.describe.kinds import OPEN, REFERENCE, WRONG, Schema
from encamp.describe.nodes import Mistakes, Node, Scalar, shape
from encamp.model.errors import EncampError
from encamp.model.size import format_bytes, parse_bytes

LATE = re.compile(r"(?<!\$)\$\{late\.")
ESCAPED_LATE = "$${late."
"""How a settled text spells what is no late reference, but looks like one."""
SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
TRUTH_OF_OLD = frozenset({"yes", "no", "on", "off", "y", "n"})


class Word:
    """Any text that is written without a list or mapping around it; all simple kinds are one."""

    def __init__(self, words: str, *, pattern: str = "", late: bool = False, most: int = 65536):
        self.words = words
        self.pattern = re.compile(pattern) if pattern else None
        self.late = late
        self.most = most

    def read(self, node: Node, mistakes: Mistakes) -> Any:
        if node.made_by is self:
            return node.made
        if type(node) is not Scalar:
            mistakes.at(node, f"{self.words} is expected here, not {shape(node)}")
            return WRONG
        if "${" in node.text:
            if not node.settled:
                return OPEN
            if LATE.search(node.text) and not self.late:
                mistakes.at(
                    node,
                    "a late reference has no value yet when this is needed; late references"
                    " are for what a machine is handed: context and ready",
                )
                return WRONG
        value = self.make(node)
        if value is WRONG:
            mistakes.at(node, self.complaint(node, mistakes))
        else:
            node.made_by, node.made = self, value
        return value

    def make(self, node: Scalar) -> Any:
        text = node.text
        if (node.plain and not text) or len(text) > self.most:
            return WRONG
        if self.pattern is not None and ("\0" in text or self.pattern.fullmatch(text) is None):
            return WRONG
        return text if self.late else text.replace(ESCAPED_LATE, ESCAPED_LATE[1:])

    def complaint(self, node: Scalar, mistakes: Mistakes) -> str:
        if len(node.text) > self.most:
            return f"this text is longer than {self.most:,} characters"
        return f"{self.words} is expected here, not {shape(node)}"

    def schema(self) -> Schema:
        made: Schema = {"type": ["string", "number", "boolean"]}
        if self.pattern is None:
            return made
        made["pattern"] = f"^(?:{self.pattern.pattern})$"
        return {"anyOf": [made, REFERENCE]}


class Whole(Word):
    """A whole number."""

    def __init__(self, words: str, *, least: int = 0, most: int = 1 << 31):
        super().__init__(words)
        self.bounds = least, most

    def make(self, node: Scalar) -> Any:
        if not node.plain or not re.fullmatch(r"[-+]?[0-9]{1,18}", node.text):
            return WRONG
        least, most = self.bounds
        value = int(node.text)
        return value if least <= value <= most else WRONG

    def complaint(self, node: Scalar, mistakes: Mistakes) -> str:
        said = super().complaint(node, mistakes)
        if not node.plain and re.fullmatch(r"[0-9]+", node.text):
            said += " in quotes"
        return said

    def schema(self) -> Schema:
        least, most = self.bounds
        return {"anyOf": [{"type": "integer", "minimum": least, "maximum": most}, REFERENCE]}


class Number(Word):
    """A number that need not be whole."""

    def __init__(self, words: str, *, least: float, most: float):
        super().__init__(words)
        self.bounds = least, most

    def make(self, node: Scalar) -> Any:
        if not node.plain or not re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?", node.text):
            return WRONG
        least, most = self.bounds
        value = float(node.text)
        return value if least <= value <= most else WRONG

    def complaint(self, node: Scalar, mistakes: Mistakes) -> str:
        least, most = self.bounds
        return f"{super().complaint(node, mistakes)}; from {least:g} to {most:g}"

    def schema(self) -> Schema:
        least, most = self.bounds
        return {"anyOf": [{"type": "number", "minimum": least, "maximum": most}, REFERENCE]}


class Bytes(Word):
    """A size as people write it; bytes as a value."""

    def __init__(self, words: str, *, least: int = 0, zero: bool = False):
        super().__init__(words)
        self.least = least
        self.zero = zero

    def make(self, node: Scalar) -> Any:
        if len(node.text) > 24 or not node.text:
            return WRONG
        try:
            value = parse_bytes(node.text, "it")
        except EncampError:
            return WRONG
        if value >= self.least or (self.zero and value == 0):
            return value
        return WRONG

    def complaint(self, node: Scalar, mistakes: Mistakes) -> str:
        said = super().complaint(node, mistakes)
        return f"{said}; at least {format_bytes(self.least)}" if self.least else said

    def schema(self) -> Schema:
        text = {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*[KMGTkmgt]?(i?[Bb])?\s*$"}
        return {"anyOf": [{"type": "number", "minimum": 0}, text, REFERENCE]}


class Duration(Word):
    """A time span; seconds as a value."""

    def make(self, node: Scalar) -> Any:
        match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([smhd]?)", node.text)
        value = float(match[1]) * SECONDS[match[2]] if match else 0.0
        return value if value > 0 else WRONG

    def schema(self) -> Schema:
        text = {"type": "string", "pattern": r"^\d+(\.\d+)?\s*[smhd]?$"}
        return {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, text, REFERENCE]}


class Truth(Word):
    def __init__(self) -> None:
        super().__init__("true or false")

    def make(self, node: Scalar) -> Any:
        return {"true": True, "false": False}.get(node.text, WRONG) if node.plain else WRONG

    def complaint(self, node: Scalar, mistakes: Mistakes) -> str:
        said = super().complaint(node, mistakes)
        if node.text.lower() in TRUTH_OF_OLD:
            return f"{said}, which means different things to different readers of YAML"
        return said

    def schema(self) -> Schema:
        return {"anyOf": [{"type": "boolean"}, REFERENCE]}


class Choice(Word):
    """One of the values of an enumeration, or of some words."""

    def __init__(self, choices: type[enum.Enum] | Iterable[str]):
        if isinstance(choices, type):
            self.choices: dict[str, Any] = {str(choice.value): choice for choice in choices}
        else:
            self.choices = {choice: choice for choice in choices}
        super().__init__(f"one of {', '.join(self.choices)}")

    def make(self, node: Scalar) -> Any:
        return self.choices.get(node.text, WRONG)

    def complaint(self, node: Scalar, mistakes: Mistakes) -> str:
        near = mistakes.near(node.text, self.choices)
        said = super().complaint(node, mistakes)
        return f"{said}{near}" if "did you mean" in near else said

    def schema(self) -> Schema:
        return {"anyOf": [{"enum": list(self.choices)}, REFERENCE]}


class Mode(Word):
    """Permissions of a file. In quotes, since YAML's readers disagree about 0644."""

    def __init__(self) -> None:
        super().__init__('permissions in quotes, such as "0644",')

    def make(self, node: Scalar) -> Any:
        if node.plain or not re.fullmatch(r"0?[0-7]{3,4}", node.text):
            return WRONG
        return int(node.text, 8)

    def complaint(self, node: Scalar, mistakes: Mistakes) -> str:
        said = super().complaint(node, mistakes)
        return f"{said} without quotes" if node.plain else said

    def schema(self) -> Schema:
        return {"anyOf": [{"type": "string", "pattern": "^0?[0-7]{3,4}$"}, REFERENCE]}


class HostPath(Word):
    """A path of the host; a relative one starts where the file is that says so."""

    def __init__(self, words: str, *, schemes: tuple[str, ...] = ()):
        super().__init__(words, most=4096)
        self.schemes = schemes

    def make(self, node: Scalar) -> Any:
        if not node.text or "\0" in node.text or len(node.text) > self.most:
            return WRONG
        if node.text.startswith(self.schemes):
            return node.text
        if "://" in node.text:
            return WRONG
        directory = (node.base or node.source).directory
        return os.path.normpath(os.path.join(directory, node.text))  # noqa: PTH118

    def schema(self) -> Schema:
        return {"type": "string"}
