"""Files of `Name=Value` lines, as Slurm's: where a parameter is set, and the file with it changed.

Nothing but the one line is touched: not its neighbours' order, blanks or comments.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

Look = Callable[[str], bytes | None]
"""What is in a file; None: there is none."""

DEEPEST = 8
"""Files that include one another."""


class Setting(msgspec.Struct, frozen=True):
    """Where a parameter is set."""

    path: str
    line: str
    """All of it, without its end."""
    value: str
    end: int
    """Where the value ends in the line: what stands there now may be a quote, or a comment."""


def logical_lines(text: str) -> list[str]:
    """The lines of a file, each with its end; one that is continued with a backslash is one."""
    made: list[str] = []
    is_continued = False
    for line in text.splitlines(keepends=True):
        if is_continued:
            made[-1] += line
        else:
            made.append(line)
        is_continued = _without_comment(line).endswith("\\")
    return made


def setting(path: str, name: str, look: Look) -> Setting | None:
    """Where a parameter is set, in a file or in one that it includes; the last one counts."""
    return _setting(path, name, look, DEEPEST)


def _setting(path: str, name: str, look: Look, depth: int) -> Setting | None:
    data = look(path)
    found: Setting | None = None
    value = re.compile(
        rf'\s*{re.escape(name)}\s*[-+*/]?=\s*(?:"(?P<quoted>[^"]*)"|(?P<bare>\S+))', re.IGNORECASE
    )
    for whole in logical_lines((data or b"").decode(errors="surrogateescape")):
        line = whole.rstrip("\r\n")
        said, places = _said(line)
        included = re.fullmatch(r"\s*include\s+(\S+)\s*", said, re.IGNORECASE)
        if included and depth > 0:
            found = _setting(_beside(path, included[1]), name, look, depth - 1) or found
        parts = value.match(said)
        if parts:
            group = "bare" if parts["quoted"] is None else "quoted"
            found = Setting(path, line, parts[group], places[parts.end(group) - 1] + 1)
    return found


def _said(line: str) -> tuple[str, list[int]]:
    """A line without comments and without what continues it; and where in it each letter is."""
    places: list[int] = []
    start = 0
    for part in line.splitlines(keepends=True):
        bare = _without_comment(part)
        length = len(bare) - 1 if bare.endswith("\\") else len(bare)
        places += range(start, start + length)
        start += len(part)
    return "".join(line[place] for place in places), places


def _without_comment(line: str) -> str:
    return re.split(r"(?<!\\)#", line, maxsplit=1)[0].rstrip()


def _beside(path: str, name: str) -> str:
    return name if name.startswith("/") else f"{path.rpartition('/')[0]}/{name}"


def replaced(data: bytes, line: str, by: str) -> bytes | None:
    """A file with a line replaced, or taken out if by nothing; None if it is not in it. Of several
    that are equal, the last."""
    lines = logical_lines(data.decode(errors="surrogateescape"))
    for place in reversed(range(len(lines))):
        bare = lines[place].rstrip("\r\n")
        if bare == line:
            lines[place] = by + lines[place][len(bare) :] if by else ""
            return "".join(lines).encode(errors="surrogateescape")
    return None


def appended(data: bytes | None, line: str) -> bytes:
    """A file with a line more at its end."""
    text = data or b""
    if text and not text.endswith(b"\n"):
        text += b"\n"
    return text + line.encode(errors="surrogateescape") + b"\n"
