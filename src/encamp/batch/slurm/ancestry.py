"""Which job a process belongs to, as the kernel tells: by the daemon of the job's step, an
ancestor of all that the job starts, which nobody but root can be or start."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import msgspec

from encamp.batch.ancestors import PROC, nearest, real_uid

TITLE = re.compile(rb"slurmstepd: \[(\d+)(?:\+\d+)?\.([A-Za-z0-9]+(?:\+\d+)?)\]\0*")
PROGRAM = re.compile(r"slurmstepd(-[\w.]+)?( \(deleted\))?")


class Step(msgspec.Struct, frozen=True):
    job: str
    """The number that Slurm itself uses: each task of an array has its own."""
    name: str
    """`batch`, `0`, `1`, ...; of a step that consists of several `0+0`, `0+1`, ..."""


def step_of(pid: int, proc: Path = PROC) -> Step | None:
    """The step of a job that a process belongs to."""
    return nearest(pid, step_by, proc)


def step_by(process: Path) -> Step | None:
    """The step that a process is the daemon of, if it is one."""
    title = TITLE.fullmatch((process / "cmdline").read_bytes())
    if title is None or real_uid(process) != 0:
        return None
    if PROGRAM.fullmatch((process / "exe").readlink().name) is None:
        return None
    return Step(title[1].decode(), title[2].decode())


def has_daemon(step: Step, proc: Path = PROC) -> bool:
    """Is the daemon of a step there? Without it, Slurm will not learn how the step has ended."""
    for process in proc.iterdir():
        with suppress(OSError):
            if process.name.isdecimal() and step_by(process) == step:
                return True
    return False
