"""Changes as people read them: what is about to become of each file and each object."""

from __future__ import annotations

import difflib

from encamp.batch.install.changes import Change, Directory, Edit, File, Object
from encamp.batch.install.lines import Look
from encamp.model.size import format_bytes

NOTHING = "/dev/null"


def headline(change: Change) -> str:
    """One line: what is changed."""
    match change:
        case Directory():
            return f"directory {change.path}"
        case File():
            aside = f" (the site's own becomes {change.aside})" if change.aside else ""
            return f"file {change.path}{aside}"
        case Edit():
            return f"line in {change.path}"
        case Object(attribute=""):
            return f"{change.sort} '{change.name}' of Grid Engine"
        case Object():
            return f"{change.attribute} of Grid Engine's {change.sort} '{change.name}'"


def difference(change: Change, look: Look) -> list[str]:
    """What a change that is still to be made does, as `diff -u` would tell."""
    match change:
        case Directory():
            return [f"+ directory {change.path}"]
        case File():
            # What is put aside stays as it is: all of ours is new.
            present = None if change.aside else look(change.path)
            told = [f"= {change.path} is kept as {change.aside}"] if change.aside else []
            return [*told, *_texts(change.path, present, change.after, change.mode)]
        case Edit():
            return _texts(change.path, change.before, change.after, 0o644)
        case Object():
            name = headline(change)
            before = [f"-{line}" for line in _lines(change, change.before)]
            after = [f"+{line}" for line in _lines(change, change.after)]
            return [f"--- {name}", f"+++ {name}", *before, *after]


def _lines(change: Object, value: str) -> list[str]:
    named = f"{change.attribute} " if change.attribute else ""
    return [f"{named}{line}" for line in value.splitlines()]


def _texts(path: str, before: bytes | None, after: bytes, mode: int) -> list[str]:
    try:
        old, new = (before or b"").decode(), after.decode()
    except UnicodeDecodeError:
        old = new = "\0"
    if "\0" in old + new:
        verb = "+ new file" if before is None else "~ other contents of"
        return [f"{verb} {path} ({format_bytes(len(after))}, mode {mode:04o})"]
    if before == after:
        return [f"~ {path} is written again, to be read again"]
    lines = difflib.unified_diff(
        old.splitlines(),
        new.splitlines(),
        NOTHING if before is None else path,
        path,
        lineterm="",
        n=2,
    )
    return list(lines)
