"""Processes that the programs of properties leave behind, wherever they have hidden from the group
of the program: they are known by a mark in their environment, and ended soon after it, or by the
next agent that reads a property by a program."""

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
    run = f"{agent_of(os.getpid())}-{next(_numbers)}"
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
    loop.run_in_executor(None, end_leftovers)


def end_leftovers() -> None:
    """Those of programs that have ended, and of agents that did not live to see it. Others begin
    meanwhile: a run is known as running before anything has its mark."""
    ours, namespace = agent_of(os.getpid()), _namespace("self")
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            run = _mark_of(name)
            agent = run.rpartition("-")[0]
            if not run or run in _running:
                continue
            # Elsewhere, the numbers of processes are others.
            abandoned = _namespace(name) == namespace and not _is_alive(agent)
            if agent == ours or abandoned:
                os.kill(int(name), signal.SIGKILL)


def agent_of(pid: int) -> str:
    """A process's number, and when it began: the two together are nobody else's until the host is
    started again."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return f"{pid}.{int(fields[19])}"


def _mark_of(process: str) -> str:
    for variable in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
        name, _, value = variable.partition(b"=")
        if name == MARK.encode():
            return value.decode(errors="replace")
    return ""


def _is_alive(agent: str) -> bool:
    pid = agent.partition(".")[0]
    try:
        return pid.isdecimal() and agent_of(int(pid)) == agent
    except (FileNotFoundError, ProcessLookupError):
        return False


def _namespace(process: str) -> str:
    return str(Path(f"/proc/{process}/ns/pid").readlink())
