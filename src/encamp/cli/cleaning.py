"""Text from elsewhere: without the letters by which terminals are told what to do, and logs are
made to say what nobody wrote in them."""

from __future__ import annotations

import logging
import re
import sys

import msgspec

_UNUSUAL = re.compile(r"[^\n\t -~]")
"""Letters that have to be looked at."""


def clean(text: str) -> str:
    """In one line."""
    return "".join(letter if letter.isprintable() else escaped(letter) for letter in text)


def clean_lines(text: str) -> str:
    """The same in as many lines as it has."""
    return _UNUSUAL.sub(_in_lines, text)


def remark(sentence: str) -> None:
    """Say something beside what was asked for, on standard error."""
    print(f"encamp: {clean(sentence)}", file=sys.stderr, flush=True)


def escaped(letter: str) -> str:
    return " " if letter in "\n\t" else repr(letter)[1:-1]


def json_text(value: object, *, indented: bool = False) -> str:
    """JSON whose texts are safe on a terminal, and the same to whoever reads them from it."""
    data = msgspec.json.encode(value)
    text = (msgspec.json.format(data) if indented else data).decode()
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    anything = encoding.lower().replace("-", "") == "utf8"
    return _UNUSUAL.sub(_in_json if anything else _as_number, text)


def _in_lines(found: re.Match[str]) -> str:
    letter = found[0]
    return letter if letter.isprintable() else escaped(letter)


def _in_json(found: re.Match[str]) -> str:
    letter = found[0]
    return letter if letter.isprintable() else _as_number(found)


def _as_number(found: re.Match[str]) -> str:
    """As one or two numbers of UTF-16, which is how JSON writes it."""
    letter = found[0]
    units = letter.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


class LogFormatter(logging.Formatter):
    """What a message says after its first line is set off, so that it is no entry of the log."""

    def format(self, record: logging.LogRecord) -> str:
        return clean_lines(super().format(record)).rstrip("\n").replace("\n", "\n    ")
