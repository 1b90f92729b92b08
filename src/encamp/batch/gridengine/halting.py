"""Has Grid Engine hear of a parallel job's tasks on a host before it hears of the script there.

If its daemon (8.1.9) is let go of a script that has tasks left, it keeps the job in mind for ever,
and never begins it again. Of a job that was put back because of one task, Grid Engine ends all at
once, and is told of the script first. So the script's shepherd stands still meanwhile.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from encamp.batch.gridengine.shepherd import shepherds
from encamp.batch.system import EndingError

HEARD = 120.0
"""Seconds in which the master has heard of all tasks: three times the usual `load_report_time`."""


class Halting:
    def __init__(self) -> None:
        self._since: dict[Path, float] = {}
        """Directories of tasks that are waited for."""

    def halt(self, id: str, host: str) -> None:
        signal_script(id, host, signal.SIGSTOP)

    @contextmanager
    def until_heard(self, id: str, host: str, task: Path) -> Iterator[None]:
        """Only while the master has yet to hear of tasks does the script stand still afterwards.
        What Grid Engine has asked its shepherd for meanwhile it asks for again."""
        is_waiting = False
        try:
            yield
        except EndingError:
            is_waiting = self.is_unheard(task)
            raise
        finally:
            if not is_waiting:
                self._since.pop(task, None)
                signal_script(id, host, signal.SIGCONT)

    def is_unheard(self, task: Path) -> bool:
        since = self._since.setdefault(task, time.monotonic())
        return has_tasks(task.parent) and time.monotonic() - since < HEARD


def signal_script(id: str, host: str, number: int) -> None:
    for each in shepherds():
        if (each.id, each.host, each.part) == (id, host, ""):
            with suppress(ProcessLookupError):
                os.kill(each.pid, number)


def has_tasks(directory: Path) -> bool:
    """Each has a directory in the job's until the master has acknowledged its end."""
    try:
        return any(entry.is_dir() for entry in directory.iterdir())
    except OSError:
        return False
