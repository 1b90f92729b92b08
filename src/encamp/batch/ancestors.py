"""What the kernel tells of a process and of those it comes from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

PROC = Path("/proc")
DEPTH = 4096
"""Ancestors that are looked at, at most."""

T = TypeVar("T")


def nearest(pid: int, what: Callable[[Path], T | None], proc: Path = PROC) -> T | None:
    """What the first tells that tells anything: the process itself, its parent, and so on."""
    for _ in range(DEPTH):
        if pid <= 1:
            return None
        try:
            found = what(proc / str(pid))
            if found is not None:
                return found
            pid = parent_of(proc / str(pid))
        except (OSError, ValueError):
            return None  # It has just ended.
    return None


def parent_of(process: Path) -> int:
    """A process's name may contain anything, brackets included."""
    return int((process / "stat").read_bytes().rpartition(b")")[2].split()[1])


def real_uid(process: Path) -> int:
    for line in (process / "status").read_text(errors="replace").splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[1])
    raise ValueError(f"{process} has no owner")
