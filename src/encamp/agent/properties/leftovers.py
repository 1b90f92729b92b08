"""Processes that the programs of properties leave behind, wherever they have hidden from the group
of the program: they are known by a mark in their environment, and ended soon after it."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = "ENCAMP_PROPERTY"
SOON = 5.0
"""Seconds after a run in which what others leave is waited for, to look once for all of it."""

_numbers = itertools.count(1)
_running: set[str] = set()
_looking: asyncio.AbstractEventLoop | None = None
"""Whose turn it is to look."""


@contextmanager
def marked() -> Iterator[str]:
    """A value of the mark for one run. What has it afterwards is ended."""
    run = f"{os.getpid()}-{next(_numbers)}"
    _running.add(run)
    try:
        yield run
    finally:
        _running.discard(run)
        _look_soon()


def _look_soon() -> None:
    global _looking
    loop = asyncio.get_running_loop()
    if _looking is not loop:
        _looking = loop
        loop.call_later(SOON, _look, loop)


def _look(loop: asyncio.AbstractEventLoop) -> None:
    global _looking
    _looking = None
    # There may be many processes to look at.
    loop.run_in_executor(None, end_leftovers, frozenset(_running))


def end_leftovers(running: frozenset[str]) -> None:
    """Those of this process's programs that have ended."""
    beginning = f"{MARK}={os.getpid()}-".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            for variable in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                run = variable.removeprefix(f"{MARK}=".encode()).decode(errors="replace")
                if variable.startswith(beginning) and run not in running:
                    os.kill(int(name), signal.SIGKILL)
