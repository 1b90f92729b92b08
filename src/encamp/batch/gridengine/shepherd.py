"""Which job a process belongs to, as the kernel tells, and what it was granted on this host.

Each job has a shepherd, an ancestor of all that the job starts, which nobody but root can be or
start; it works in the job's directory, where the execution daemon has written down for it what the
job may have. Neither can be changed by the job.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from encamp.batch.ancestors import PROC, nearest, real_uid

PROGRAM = re.compile(r"sge_shepherd( \(deleted\))?")
DIRECTORY = re.compile(r"(?:/.*)?/active_jobs/(\d+)\.(\d+)(?:/([^/]+))?(?: \(deleted\))?")
"""Of a job's task, and of a program that it has started on another of its hosts."""
LARGEST = 16 << 20
"""Bytes of one of its files; the largest has the job's variables."""
EXIT_STATUS = "exit_status"
"""What it writes last."""
INTERACTIVE = "qrsh_control_port"
"""Only what `qrsh` has begun has it."""


class Shepherd(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    task: str
    """Job and task, as the directory is called: `17.1`, also if it is no array."""
    part: str
    """Of a job on several hosts, where it was started from another one: `1.node2`."""
    config: dict[str, str]
    directory: Path
    """Where it works. For a moment it is there longer than the shepherd."""

    @property
    def id(self) -> str:
        job, _, task = self.task.partition(".")
        return job if self.config.get("ja_task_id", "0") == "0" else f"{job}.{task}"

    @property
    def host(self) -> str:
        return self.config.get("host", "")

    def file(self, name: str) -> str:
        """A file of the job's directory, which is the shepherd's own."""
        return read_left(PROC / str(self.pid) / "cwd" / name)

    def left(self, name: str) -> str:
        """The same when the shepherd may have ended."""
        return read_left(self.directory / name)

    @property
    def mark(self) -> int | None:
        """The group that all of the job's processes have, and no others: what has it is measured as
        the job's, and ended with it."""
        with contextlib.suppress(OSError, ValueError):
            return int(self.file("addgrpid"))
        return None

    @property
    def slots(self) -> int:
        """On this host."""
        return max(1, int(self.config.get("host_slots", "1")))

    @property
    def is_attended(self) -> bool:
        """Does somebody wait for what it runs: a user, or for a task the job that has begun it?"""
        return INTERACTIVE in self.config

    @property
    def is_parallel(self) -> bool:
        """Can the job have tasks of its own?"""
        return self.config.get("pe", "none") != "none"

    @property
    def hosts(self) -> tuple[str, ...]:
        """All of the job's, the first first."""
        with contextlib.suppress(OSError):
            lines = self.file("pe_hostfile").splitlines()
            if self.is_parallel and lines:
                return tuple(dict.fromkeys(line.split()[0] for line in lines if line.strip()))
        return (self.host,)

    @property
    def restarted(self) -> bool:
        with contextlib.suppress(OSError):
            return settings_in(self.file("environment")).get("RESTARTED", "0") != "0"
        return False


def shepherd_of(pid: int) -> Shepherd | None:
    """The shepherd that a process has among its ancestors."""
    return nearest(pid, read_shepherd, PROC)


def shepherds() -> Iterator[Shepherd]:
    """All of this host."""
    for entry in os.scandir(PROC):
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                found = read_shepherd(PROC / entry.name)
                if found is not None:
                    yield found


def read_shepherd(process: Path) -> Shepherd | None:
    """The process, if it is one. Programs of that name can be anybody's; root they cannot be."""
    try:
        program = (process / "exe").readlink()
    except FileNotFoundError:
        return None  # The kernel's own, or about to end.
    if PROGRAM.fullmatch(program.name) is None or real_uid(process) != 0:
        return None
    place = (process / "cwd").readlink()
    directory = DIRECTORY.fullmatch(str(place))
    if directory is None:
        return None
    return Shepherd(
        pid=int(process.name),
        task=f"{directory[1]}.{directory[2]}",
        part=directory[3] or "",
        config=settings_in(read_left(process / "cwd" / "config")),
        directory=place,
    )


def read_left(path: Path) -> str:
    """Some of these files are the job's, too: what it makes of them costs us nothing."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode) or os.fstat(fd).st_size > LARGEST:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return file.read(LARGEST).decode(errors="replace")


def settings_in(text: str) -> dict[str, str]:
    """NAME=VALUE lines. Of two with one name the first counts: what follows may be of the job."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals:
            found.setdefault(name, value)
    return found
