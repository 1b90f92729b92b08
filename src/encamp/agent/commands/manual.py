"""The table of shipped commands in the documents, made from the commands themselves.

`python -m encamp.agent.commands.manual FILE...` brings documents up to date."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from encamp.agent.commands.offers import plugins
from encamp.model.arguments import signature
from encamp.model.command import CommandDefinition

PLACE = re.compile(r"(<!-- commands -->\n).*?(<!-- end of commands -->)", re.DOTALL)


def shipped() -> list[CommandDefinition]:
    found, _ = plugins(ours_only=True)
    definitions = [offer.definition for _, offer in sorted(found.items())]
    return [definition for definition in definitions if not definition.internal]


def table() -> str:
    lines = ["| command | parameters | returns | limit | what it does |", "|" + " --- |" * 5]
    for command in shipped():
        returns = command.returns.value if command.returns else ""
        takes = f"`{signature(command)}`" if command.parameters else ""
        about = " ".join(command.help.split())
        lines.append(
            f"| `{command.name}` | {takes} | {returns} | {command.timeout:,.0f} s | {about} |"
        )
    return "\n".join(lines) + "\n"


def updated(document: str) -> str:
    return PLACE.sub(lambda match: f"{match[1]}\n{table()}\n{match[2]}", document)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        path = Path(argument)
        path.write_text(updated(path.read_text()))
