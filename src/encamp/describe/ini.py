"""From the bytes of an INI file to the nodes that a YAML file gives, so that one table reads both.

A section is a mapping, a line `name = value` an entry of it. A value may go on in lines that are
indented further than its name. It may stand in braces, as expressions often do: then what is
inside is the value, lines and indentation as they were written, so that a place in it is a place
in the file. Nothing is interpolated.
"""

from __future__ import annotations

import re

from encamp.describe.nodes import COLUMN_BITS, Mapping, Mistakes, Scalar
from encamp.describe.reading import LARGEST_FILE, position
from encamp.describe.sources import Source

SECTION = re.compile(r"\[\s*([^\[\]]*?)\s*\]\s*")
ENTRY = re.compile(r"([^=:\s][^=:]*?)\s*[=:]\s*")
COMMENTS = ("#", ";")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x85\u2028\u2029\ufffe\uffff]")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

ENDS_BRACE = re.compile(r"\[\s*[A-Za-z][\w.-]*\s*\]|[A-Za-z_]\w*\s+=\s")
"""What cannot stand in a value in braces: somebody has forgotten to close it."""
COMMENT_BEHIND = re.compile(r"\}\s*[#;]")

EXPECTED = "a [section], 'name = value', or a comment (#) is expected here"


def read_ini(source: Source, data: bytes, mistakes: Mistakes) -> Mapping | None:
    """A mapping of the sections by their names; None if the file cannot be read, which is reported.

    Like `reading.read_mapping`: what can be understood is returned, what cannot is reported.
    """
    if len(data) > LARGEST_FILE:
        mistakes.add(source, 1, 1, f"the file is larger than {LARGEST_FILE >> 20} MiB")
        return None
    data = data.removeprefix(BYTE_ORDER_MARK)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        mistakes.add(source, *position(data, error.start), "this is not UTF-8 text")
        return None
    text = text.replace("\r\n", "\n")
    found = CONTROL.search(text)
    if found is not None:
        before = text[: found.start()]
        line, column = before.count("\n") + 1, found.start() - before.rfind("\n")
        mistakes.add(source, line, column, "a control character is not allowed here")
        return None
    return _Reader(source, mistakes).read(text)


class _Reader:
    def __init__(self, source: Source, mistakes: Mistakes) -> None:
        self.source = source
        self.mistakes = mistakes
        self.root = Mapping({}, {}, 1, 1, source)
        self.section: Mapping | None = None
        self.key = ""
        """The entry that lines may be added to; none after a section or a mistake."""
        self.key_place = (0, 0)
        self.value_place = (0, 0)
        self.lines: list[str] = []
        """What was written as its value, one text for each line of the file."""
        self.told_no_section = False

    def read(self, text: str) -> Mapping:
        for number, line in enumerate(text.split("\n"), 1):
            self._line(number, line)
        self._end_entry()
        return self.root

    def _line(self, number: int, line: str) -> None:
        content = line.strip()
        if not content or content.startswith(COMMENTS):
            if self.key:
                self.lines.append("")
            return
        column = len(line) - len(line.lstrip()) + 1
        if self.key and (column > self.key_place[1] or self._goes_on(content)):
            self.lines.append(line.rstrip())
            return
        self._end_entry()
        if content.startswith("["):
            self._begin_section(number, column, content)
            return
        entry = ENTRY.match(content)
        if entry is None:
            self.mistakes.add(self.source, number, column, f"{EXPECTED}, not {_short(content)}")
            return
        self.key, self.key_place = entry[1], (number, column)
        self.value_place = (number, column + entry.end())
        self.lines = [content[entry.end() :]]

    def _goes_on(self, content: str) -> bool:
        """Is this part of a value in braces? That may stand below the name."""
        first = next((line for line in self.lines if line), "")
        last = next((line for line in reversed(self.lines) if line), "")
        return (
            first.lstrip().startswith("{")
            and not last.endswith("}")
            and ENDS_BRACE.match(content) is None
        )

    def _begin_section(self, number: int, column: int, content: str) -> None:
        section = SECTION.fullmatch(content)
        name = section[1] if section is not None else ""
        # What belongs to a section that is wrong is read, and not kept.
        self.section = Mapping({}, {}, number, column, self.source)
        if not name:
            self.mistakes.add(
                self.source, number, column, f"a [section] is expected here, not {_short(content)}"
            )
        elif name in self.root.entries:
            line, _ = self.root.where(name)
            self.mistakes.add(
                self.source,
                number,
                column,
                f"the section [{name}] was begun already, at line {line}",
            )
        else:
            self.root.entries[name] = self.section
            self.root.keys[name] = number << COLUMN_BITS | column + content.index(name)

    def _end_entry(self) -> None:
        key, self.key = self.key, ""
        if not key:
            return
        value = self._value()
        line, column = self.key_place
        if self.section is None:
            if not self.told_no_section:
                self.mistakes.add(
                    self.source, line, column, f"'{key}' belongs to no section; begin one: [name]"
                )
                self.told_no_section = True
        elif key in self.section.entries:
            first, _ = self.section.where(key)
            self.mistakes.add(
                self.source, line, column, f"'{key}' was given already, at line {first}"
            )
        elif value is not None:
            self.section.entries[key] = value
            self.section.keys[key] = line << COLUMN_BITS | column
            self.section.weight += 1
            self.root.weight += 1

    def _value(self) -> Scalar | None:
        written = "\n".join(self.lines).rstrip()
        text = written.lstrip()
        place = _after(self.value_place, written[: len(written) - len(text)])
        if not text.startswith("{"):
            return self._scalar("\n".join(map(str.strip, text.split("\n"))), *place)
        if not text.endswith("}"):
            wrong = "this brace is not closed; end the value with '}'"
            if COMMENT_BEHIND.search(text):
                wrong = "nothing may follow the closing brace; a comment needs a line of its own"
            self.mistakes.add(self.source, *place, wrong)
            return None
        inside = text[1:-1].rstrip()
        value = inside.lstrip()
        return self._scalar(value, *_after(place, "{" + inside[: len(inside) - len(value)]))

    def _scalar(self, text: str, line: int, column: int) -> Scalar:
        # There are no references in INI files: what looks like one is text.
        return Scalar(text, True, line, column, self.source, settled="${" in text)


def _after(place: tuple[int, int], text: str) -> tuple[int, int]:
    """Where it goes on after a text that begins at a place."""
    line, column = place
    lines = text.count("\n")
    return (line + lines, len(text) - text.rfind("\n")) if lines else (line, column + len(text))


def _short(content: str) -> str:
    return repr(content if len(content) <= 60 else f"{content[:57]}...")
