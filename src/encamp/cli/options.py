"""Options as people write them, turned into what the library takes."""

from __future__ import annotations

import os
import re
from pathlib import Path

from encamp.agent.caller import caller as caller
from encamp.model.errors import Code, EncampError
from encamp.model.job import Copy
from encamp.model.machine import Share

DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def split(text: str, what: str) -> list[str]:
    """Split at colons; `\\:` is a colon of a name, and `\\\\` a backslash."""
    parts = [""]
    for letter in re.findall(r"\\[:\\]|.", text, re.DOTALL):
        if letter == ":":
            parts.append("")
        else:
            parts[-1] += letter[-1]
    if not parts[0]:
        raise EncampError(Code.USAGE, f"{what} '{text}' names nothing before the colon.")
    return parts


def parse_share(text: str) -> Share:
    """DIR[:PATH][:ro]; the directory appears under its own path if no other is given."""
    parts = split(text, "--share")
    readonly = False
    if len(parts) > 1 and parts[-1] in ("ro", "rw"):
        readonly = parts.pop() == "ro"
    if len(parts) > 2 or (len(parts) == 2 and not parts[1]):
        raise EncampError(
            Code.USAGE,
            f"--share '{text}' is not DIR, DIR:PATH or DIR:PATH:ro.",
            "Write '\\:' for a colon in a name.",
        )
    source = str(Path(parts[0]).absolute())
    path = os.path.normpath(parts[1]) if len(parts) == 2 else source
    return Share(source=source, path=path, readonly=readonly)


def parse_copy(text: str, option: str) -> Copy:
    """SRC[:DST]."""
    parts = split(text, option)
    if len(parts) > 2 or (len(parts) == 2 and not parts[1]):
        raise EncampError(
            Code.USAGE,
            f"{option} '{text}' is not SRC or SRC:DST.",
            "Write '\\:' for a colon in a name.",
        )
    return Copy(source=parts[0], target=parts[1] if len(parts) == 2 else None)


def parse_variable(text: str) -> tuple[str, str]:
    """NAME=VALUE, or NAME alone for the caller's own value."""
    name, equals, value = text.partition("=")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise EncampError(Code.USAGE, f"--env-var '{text}': '{name}' cannot name a variable.")
    if equals:
        return name, value
    if name not in os.environ:
        raise EncampError(
            Code.USAGE,
            f"--env-var {name}: you have no such variable to pass on.",
            f"Give it a value: --env-var {name}=...",
        )
    return name, os.environ[name]


def parse_duration(text: str) -> float:
    """Seconds, or with a unit: 90, 1.5h, 10m."""
    match = DURATION.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise EncampError(
            Code.USAGE, f"'{text}' is not a time limit.", "Write seconds, or 10m, 2h, 1d."
        )
    return float(match[1]) * SECONDS[match[2]]
