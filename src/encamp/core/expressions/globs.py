"""Patterns as a shell has them, matched in a time that grows with the text and no faster.

A pattern is cut at its `*`. Each piece has a fixed length, and is searched for after the one
before: the first place that fits is always good enough, so nothing is ever tried again.
"""

from __future__ import annotations

import re

from encamp.core.expressions.language import LONGEST_PATTERN


class PatternError(ValueError):
    """A sentence says what is wrong with it."""


class Glob:
    def __init__(self, pattern: str) -> None:
        if len(pattern) > LONGEST_PATTERN:
            raise PatternError(f"a pattern has at most {LONGEST_PATTERN} characters.")
        pieces = [_piece(piece) for piece in _cut(pattern)]
        self._first, *self._middle = pieces
        self._last = self._middle.pop() if self._middle else None
        self._tries = max((length for _, length in self._middle), default=0)

    def steps(self, text: str) -> int:
        """What it costs at most to look at a text. At each of its places a piece between two stars
        may fit but for its last character."""
        return len(text) // 16 + len(text) * self._tries // 64

    def matches(self, text: str) -> bool:
        first, length = self._first
        if self._last is None:
            return len(text) == length and first.match(text) is not None
        last, last_length = self._last
        end = len(text) - last_length
        if end < length or first.match(text) is None or last.match(text, end) is None:
            return False
        position = length
        for piece, _ in self._middle:
            found = piece.search(text, position, end)
            if found is None:
                return False
            position = found.end()
        return True


def _cut(pattern: str) -> list[list[str]]:
    """Pieces between stars, each a list of what one character may be."""
    pieces: list[list[str]] = [[]]
    position = 0
    while position < len(pattern):
        character = pattern[position]
        position += 1
        if character == "*":
            pieces.append([])
        elif character == "[":
            # A bracket right after the opening one is a member.
            start = position + (pattern[position : position + 1] == "!")
            end = pattern.find("]", start + 1)
            if end < 0:
                raise PatternError("a '[' in the pattern has no ']'.")
            pieces[-1].append(pattern[position - 1 : end + 1])
            position = end + 1
        else:
            pieces[-1].append(character)
    return pieces


def _piece(items: list[str]) -> tuple[re.Pattern[str], int]:
    return re.compile("".join(map(_one, items)), re.DOTALL), len(items)


def _one(item: str) -> str:
    """A regular expression for exactly one character."""
    if item == "?":
        return "."
    if len(item) == 1:
        return re.escape(item)
    members = item[1:-1]
    negated = members.startswith("!")
    if negated:
        members = members[1:]
    made: list[str] = []
    position = 0
    while position < len(members):
        first, dash, last = members[position], members[position + 1 : position + 2], ""
        if dash == "-" and position + 2 < len(members):
            last = members[position + 2]
            if last < first:
                raise PatternError(f"'{first}-{last}' in the pattern is the wrong way round.")
            made.append(f"{re.escape(first)}-{re.escape(last)}")
            position += 3
        else:
            made.append(re.escape(first))
            position += 1
    return f"[{'^' if negated else ''}{''.join(made)}]"
