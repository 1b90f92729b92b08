"""Other processes of a benchmark: started, watched from outside by /proc, and ended again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.measure import KIB, ImpossibleError

TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE = 60.0

PARENT = 1
OWN_TIMES = slice(11, 13)
"""User and system, as `stat` counts its fields after the program's name."""
CHILDREN_TIMES = slice(13, 15)
"""Of children that have ended."""


@contextmanager
def running(
    command: Sequence[str | Path],
    log: Path,
    environment: Mapping[str, str] | None = None,
    *,
    grace: float = 15.0,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a session of its own. It is asked to end, with all it started, and killed if
    it has not after so many seconds."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
    try:
        yield process
    finally:
        if grace > 0:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace)
        # What it started may take longer than itself.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until(what: str, true: Callable[[], bool], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise ImpossibleError(f"{what} within {seconds:.0f} seconds.")
        time.sleep(0.1)


def _stat(pid: int | str) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _seconds(fields: Sequence[str]) -> float:
    return sum(map(int, fields)) / TICKS


def processor_seconds(pid: int) -> float:
    """What a process has used of the processors, user and system."""
    return _seconds(_stat(pid)[OWN_TIMES])


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                children.setdefault(int(_stat(name)[PARENT]), []).append(int(name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def family_seconds(pid: int) -> float:
    """What a process and all that descend from it have used, those that have ended too."""
    total = 0.0
    for one in family(pid):
        with suppress(OSError):
            fields = _stat(one)
            total += _seconds(fields[OWN_TIMES]) + _seconds(fields[CHILDREN_TIMES])
    return total


@dataclass
class Held:
    """What a process holds of the host's memory, in bytes."""

    resident: int = 0
    proportional: int = 0
    """With only its part of what it shares with others."""
    virtual: int = 0

    def __add__(self, other: Held) -> Held:
        return Held(
            self.resident + other.resident,
            self.proportional + other.proportional,
            self.virtual + other.virtual,
        )


def held(pid: int) -> Held:
    shared = Path(f"/proc/{pid}/smaps_rollup").read_text()
    status = Path(f"/proc/{pid}/status").read_text()
    return Held(_kib(shared, "Rss"), _kib(shared, "Pss"), _kib(status, "VmSize"))


def _kib(text: str, name: str) -> int:
    line = next(line for line in text.splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * KIB
