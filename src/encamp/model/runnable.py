"""What a command can be started with. What no system takes is refused where it is asked for, and
not when a machine has been made for it."""

from __future__ import annotations

from encamp.model.errors import Code, EncampError
from encamp.model.job import Command
from encamp.model.quantity import duration, quantity

LONGEST_WORD = (128 << 10) - 1
"""Bytes of one argument, or of one variable with its name: Linux takes no more."""

LONGEST = 366 * 86400.0
"""Seconds of a time limit: so long may commands take on hosts."""

SHOWN = 60
"""Characters of what is wrong that its error quotes."""


def check_command(command: Command, *, optional: bool = False) -> None:
    """`optional`: the command may be empty, because files are copied without one."""
    if not (command.arguments[0] if command.arguments else optional):
        raise EncampError(Code.USAGE, "There is nothing to run.", "Name a program.")
    for number, word in enumerate(command.arguments):
        _check_word(f"Argument {number} of the command" if number else "The program's name", word)
    for name, value in command.variables:
        if not name or "=" in name or "\0" in name:
            raise EncampError(
                Code.USAGE,
                f"{_quoted(name)} cannot name a variable.",
                "A name has at least one letter, no '=' and no zero byte.",
            )
        _check_word(f"Variable {_quoted(name)}", f"{name}={value}")
    if command.workdir is not None:
        check_text("The working directory", command.workdir)
        if not command.workdir.startswith("/"):
            raise EncampError(
                Code.USAGE,
                f"The working directory {_quoted(command.workdir)} is not an absolute path.",
                "It is a path inside the machine, such as /tmp.",
            )
    if command.terminal is not None:
        check_text("The terminal's kind", command.terminal)


def check_timeout(seconds: float | None) -> None:
    if seconds is not None and not 0 < seconds <= LONGEST:
        raise EncampError(
            Code.USAGE,
            f"A time limit of {quantity(seconds, 'seconds')} makes no sense.",
            f"Give more than 0 and at most {duration(LONGEST)}, or none.",
        )


def check_text(what: str, text: str) -> None:
    """Names of files, and whatever else ends with a zero byte where it is used."""
    if "\0" in text:
        raise EncampError(
            Code.USAGE,
            f"{what} has a zero byte in it, at character {text.index(chr(0)) + 1}.",
            "No program can be given one.",
        )


def _check_word(what: str, word: str) -> None:
    check_text(what, word)
    try:
        length = len(word.encode())
    except UnicodeEncodeError as error:
        raise EncampError(
            Code.USAGE,
            f"{what} is no text in UTF-8, at character {error.start + 1}.",
            "What is not can be in a file, and in the names of files that are copied.",
        ) from error
    if length > LONGEST_WORD:
        raise EncampError(
            Code.USAGE,
            f"{what} has {length:,} bytes, and a program takes {LONGEST_WORD:,}.",
            "Put what is long into a file.",
        )


def _quoted(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."
