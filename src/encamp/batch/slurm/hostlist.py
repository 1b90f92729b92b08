"""Slurm's short way to write many node names: `n[1-3,7],login`."""

from __future__ import annotations

import itertools
import re

from encamp.model.errors import Code, EncampError

MOST = 1 << 17
"""Names that one list may stand for; Slurm itself knows no more nodes."""
PART = re.compile(r"(?:[^,\[\]]|\[[0-9,-]+\])+")
RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand(text: str) -> tuple[str, ...]:
    """All names, in order."""
    names: list[str] = []
    parts = PART.findall(text)
    if ",".join(parts) != text:
        raise _wrong(text)
    for part in parts:
        pieces = re.split(r"\[([0-9,-]+)\]", part)
        choices = [
            _numbers(piece, text) if odd % 2 else [piece] for odd, piece in enumerate(pieces)
        ]
        for chosen in itertools.product(*choices):
            names.append("".join(chosen))
            if len(names) > MOST:
                raise _wrong(text)
    return tuple(names)


def _numbers(ranges: str, text: str) -> list[str]:
    """`08-10` stands for 08, 09 and 10: as wide as the first."""
    numbers: list[str] = []
    for one in ranges.split(","):
        match = RANGE.fullmatch(one)
        if match is None:
            raise _wrong(text)
        first, last = match[1], match[2] or match[1]
        if int(last) - int(first) > MOST:
            raise _wrong(text)
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return numbers


def _wrong(text: str) -> EncampError:
    return EncampError(Code.PROTOCOL, f"'{text[:200]}' is no list of Slurm nodes.")
