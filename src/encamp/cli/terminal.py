"""The caller's terminal: its size, and raw mode while a command inside has it."""

from __future__ import annotations

import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

from encamp.model.errors import Code, EncampError


def window() -> tuple[int, int] | None:
    """Rows and columns of the terminal, if there is one."""
    for fd in (0, 1, 2):
        try:
            size = os.get_terminal_size(fd)
        except OSError:
            continue
        if size.lines and size.columns:
            return size.lines, size.columns
    return None


@contextmanager
def raw_terminal() -> Iterator[None]:
    """Pass every key on as it is, Ctrl-C too; put the terminal back afterwards."""
    if not sys.stdin.isatty():
        yield
        return
    try:
        before = termios.tcgetattr(0)
    except termios.error as error:
        raise EncampError(Code.USAGE, f"The terminal cannot be used: {error}.") from error
    # Keys typed before the command has its terminal are meant for it.
    tty.setraw(0, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
