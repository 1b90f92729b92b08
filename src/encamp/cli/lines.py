"""Things that are told one after the other: a line each, coloured on a terminal, or JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from encamp.cli.cleaning import clean, json_text

if TYPE_CHECKING:
    from rich.console import Console


class Lines:
    def __init__(self, *, as_json: bool) -> None:
        self._console: Console | None = None
        if not as_json:
            from encamp.cli.tables import console

            self._console = console()

    def print(self, thing: object, parts: Iterable[tuple[str, str]]) -> None:
        """Written at once: somebody may be waiting for it."""
        if self._console is None:
            sys.stdout.write(json_text(thing) + "\n")
        else:
            from rich.text import Text

            line = Text("  ").join(Text(clean(text), style) for text, style in parts)
            self._console.print(line, soft_wrap=True)
        sys.stdout.flush()
