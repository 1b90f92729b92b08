"""Programs that the administrator of a host has listed, and what that host takes at all."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase

import msgspec

from encamp.model.arguments import check_arguments, wrong
from encamp.model.command import CommandDefinition
from encamp.model.patterns import Pattern
from encamp.model.property import Value

AT_ONCE = 16
"""Commands that a host carries out at the same time; the others wait for their turn."""

FAMILY = "program."
"""What the names of listed programs begin with, as commands."""

LONGEST_WORD = 100_000
"""Bytes of one argument; the kernel takes not much more."""


class ListedProgram(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a listed program is run. Nobody but an administrator of its host can say so."""

    definition: CommandDefinition
    words: tuple[str, ...]
    """The program's path and its arguments; `{name}` stands for an argument of the command."""
    patterns: dict[str, str] = {}
    """What the texts of an argument must look like, whole."""
    user: str | None = None
    """Whom it runs as; without, the agent's own user."""
    directory: str = "/"

    def check(self, arguments: dict[str, Value]) -> dict[str, Value]:
        """Like `check_arguments`; and no argument can pass for an option unless it may."""
        checked = check_arguments(self.definition, arguments)
        for name, value in checked.items():
            for text in _texts(value):
                self._check_text(name, text)
        return checked

    def _check_text(self, name: str, text: str) -> None:
        pattern = self.patterns.get(name)
        if "\0" in text or len(text.encode(errors="replace")) > LONGEST_WORD:
            raise wrong(self.definition, f"'{name}' is too long, or has a zero byte in it.")
        if pattern is None and text.startswith("-"):
            raise wrong(
                self.definition,
                f"'{name}' must not begin with '-', which the program would take for an option.",
            )
        if pattern is not None and not Pattern(pattern).fits(text):
            shown = text if len(text) <= 60 else f"{text[:60]}..."
            raise wrong(
                self.definition, f"'{name}' must match {pattern!r}, and {shown!r} does not."
            )


class CommandSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `commands.yaml` or `commands.ini` of a host says."""

    accept: tuple[str, ...] = ("*",)
    """Patterns of names of commands; what none of them fits is refused."""
    at_once: int = AT_ONCE
    programs: tuple[ListedProgram, ...] = ()

    def accepts(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.accept)


def _texts(value: Value) -> list[str]:
    """All that becomes a word of its own, as it will be written."""
    items = value if isinstance(value, list) else [value]
    return [
        item if isinstance(item, str) else json.dumps(item)
        for item in items
        if isinstance(item, str | int | float) and not isinstance(item, bool)
    ]
