"""The command reference, made from the commands themselves: `python -m encamp.cli.reference`."""

from __future__ import annotations

from typing import Any

import typer.main

from encamp.cli.main import application
from encamp.model.errors import Code

HEAD = """# Command reference

Made from the code by `make docs`; do not edit. Every command answers to `--help`.
"""


def reference() -> str:
    parts = [HEAD]
    root = typer.main.get_command(application())
    for name, command in _commands(root, "encamp"):
        parts.append(_section(name, command))
    parts.append(_exit_codes())
    return "\n".join(parts).rstrip() + "\n"


def _commands(group: Any, prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, command in group.commands.items():
        full = f"{prefix} {name}"
        found += _commands(command, full) if hasattr(command, "commands") else [(full, command)]
    return found


def _section(name: str, command: Any) -> str:
    context = typer.Context(command, info_name=name)
    usage = " ".join(command.collect_usage_pieces(context)).translate({123: None, 125: None})
    lines = [f"## {name}", "", f"    {name} {usage}", "", _text(command.help or "")]
    options = [
        record
        for parameter in command.get_params(context)
        if (record := parameter.get_help_record(context)) and record[0].startswith("-")
    ]
    if options:
        lines += ["", "| option | meaning |", "| --- | --- |"]
        lines += [f"| `{_cell(option)}` | {_cell(meaning)} |" for option, meaning in options]
    return "\n".join([*lines, ""])


def _text(help_text: str) -> str:
    paragraphs = [" ".join(part.split()) for part in help_text.strip().split("\n\n")]
    return "\n\n".join(
        f"Example: `{part.removeprefix('Example: ')}`" if part.startswith("Example: ") else part
        for part in paragraphs
    )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _exit_codes() -> str:
    """The codes Encamp itself ends with, as the docstrings in the enumeration tell them."""
    lines = [
        "## Exit codes",
        "",
        "`encamp run`, `exec` and `shell` end with the command's own exit code, 128 + n if signal",
        "n killed it, 126 or 127 if it could not be started. Encamp's own codes are:",
        "",
        "| code | name |",
        "| --- | --- |",
    ]
    lines += [f"| {code.value} | {code.name.lower().replace('_', ' ')} |" for code in Code]
    return "\n".join([*lines, "", "[Operations](operations.md) says what each means."])


if __name__ == "__main__":
    print(reference(), end="")
