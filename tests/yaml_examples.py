"""Reads the descriptions and settings of a document, so that they can be loaded as a reader would.

A block fenced with ```yaml is a file `environments.yaml`, or the one that the comment
`<!-- file: NAME -->` before it names. The comment `<!-- not loaded: why -->` leaves it out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FENCE = "```"
FILE = re.compile(r"<!-- file: (\S+) -->")
NOT_LOADED = re.compile(r"<!-- not loaded: .+ -->")


@dataclass
class Example:
    name: str
    line: int
    text: str


def read_yaml_examples(document: str) -> list[Example]:
    """All blocks of a document that are to be loaded, in order."""
    examples: list[Example] = []
    inside: Example | None = None
    other = False
    name, skip = "environments.yaml", False
    for number, line in enumerate(document.splitlines(), 1):
        if line.startswith(FENCE):
            if inside is not None:
                if not skip:
                    examples.append(inside)
                inside, skip, name = None, False, "environments.yaml"
            elif other:
                other = False
            elif line.removeprefix(FENCE).strip() == "yaml":
                inside = Example(name, number, "")
            else:
                other = True
        elif inside is not None:
            inside.text += line + "\n"
        elif line.strip() and not other:
            named = FILE.fullmatch(line.strip())
            name = named[1] if named else "environments.yaml"
            skip = NOT_LOADED.fullmatch(line.strip()) is not None
    return examples
