"""The processes of a command: its descendants, and those that say which command they belong to.

Machines are no part of it, whoever started them: they live until their keeper ends them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from encamp.home import Home

MARK = "ENCAMP_COMMAND"
"""The variable by which a command's processes are known even when their parents are gone."""

PATIENCE = 5.0
"""Seconds in which killed processes are gone, unless the kernel itself holds one up."""

SUBREAPER = 36
DEATH_SIGNAL = 1
"""Of prctl(2)."""


def adopt_orphans() -> None:
    """From now on, descendants whose parents end become children of this process."""
    _prctl(SUBREAPER, 1)


def die_with(parent: int) -> None:
    """End this process when its parent ends, however that ends."""
    _prctl(DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def end_descendants(home: Home, reap: Callable[[], None]) -> None:
    """Kill every descendant of this process but machines, and see them gone."""
    patience = time.monotonic() + PATIENCE
    while (left := [pid for pid in _descendants() if not _is_machine(pid, home)]) and (
        time.monotonic() < patience
    ):
        for pid in left:
            _kill(pid)
        reap()
        time.sleep(0.005)


def end_marked(id: str, home: Home) -> None:
    """The same for a command whose own process is gone: what it left is known by its mark."""
    mark = f"{MARK}={id}".encode()
    patience = time.monotonic() + PATIENCE
    while (left := [pid for pid in _marked(mark) if not _is_machine(pid, home)]) and (
        time.monotonic() < patience
    ):
        for pid in left:
            _kill(pid)
        time.sleep(0.01)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _descendants() -> list[int]:
    """Those that have not ended."""
    parents: dict[int, int] = {}
    for pid in _pids():
        with suppress(OSError):
            state, parent = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:2]
            if state != b"Z":
                parents[pid] = int(parent)
    family = {os.getpid()}
    growing = True
    while growing:
        found = {pid for pid, parent in parents.items() if parent in family} - family
        growing = bool(found)
        family |= found
    return sorted(family - {os.getpid()})


def _marked(mark: bytes) -> list[int]:
    found = []
    for pid in _pids():
        with suppress(OSError):
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def _is_machine(pid: int, home: Home) -> bool:
    """A machine's process works in the machine's directory, in its owner's home."""
    try:
        where = Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return False
    if where.is_relative_to(home.owners):
        return where.relative_to(home.owners).parts[1:2] == (home.machines.name,)
    return where.is_relative_to(home.machines)
