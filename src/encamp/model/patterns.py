"""Regular expressions that people write, for texts that others write.

Whatever the expression and the text, searching takes time in proportion to the text: RE2's promise.
With Python's own expressions, one that is written carelessly and a text that is made for it keep a
daemon busy for years.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

MOST_MEMORY = 8 << 20
"""Bytes that one expression may take once it is compiled."""
LONGEST = 10_000
"""Characters."""
MOST_GROUPS = 100
"""What each may have matched is kept for every place of the expression."""


class Pattern:
    """Raises `ValueError`, with what is wrong, if it is none."""

    def __init__(self, text: str, *, lines: bool = False) -> None:
        """`lines`: `^` and `$` match at every line."""
        self._compiled = _compiled(f"(?m){text}" if lines else text)
        self.groups: int = self._compiled.groups

    def fits(self, text: str) -> bool:
        """All of it."""
        return self._compiled.fullmatch(_plain(text)) is not None

    def find(self, text: str) -> str | None:
        """What the first group matches, or all of the match if there is no group."""
        found = self._compiled.search(_plain(text))
        if found is None:
            return None
        return (found[1] or "") if self.groups else found[0]


@lru_cache(maxsize=256)
def _compiled(text: str) -> Any:
    import re2

    if len(text) > LONGEST:
        raise ValueError(f"it has more than {LONGEST:,} characters")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MOST_MEMORY
    try:
        compiled = re2.compile(text, options)
    except re2.error as error:
        (said,) = error.args
        raise ValueError(said.decode(errors="replace")) from error
    except UnicodeEncodeError as error:
        raise ValueError("it is no text") from error
    if compiled.groups > MOST_GROUPS:
        raise ValueError(f"it has more than {MOST_GROUPS} groups")
    return compiled


def _plain(text: str) -> str:
    """What is no text is nothing that an expression could ask for."""
    return text.encode(errors="replace").decode()
