"""Has Grid Engine hear of a parallel job's tasks on a host before it hears of the script there.

If its daemon (8.1.9) is let go of a script that has tasks left, it keeps the job in mind for ever,
and never begins it again. Of a job that was put back because of one task, Grid Engine ends all at
once, and is told of the script first. So the script's shepherd stands still meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from encamp.batch.gridengine.shepherd import shepherds
from encamp.model.errors import EncampError

HEARD = 120.0
"""Seconds in which the master has heard of all tasks: three times the usual `load_report_time`."""


class Halting:
    def __init__(self) -> None:
        self._since: dict[Path, float] = {}
        """Directories of jobs that have tasks which are waited for;"""
        self._tasks: dict[Path, set[Path]] = {}
        """and theirs. Each is looked after for itself, but the script is that of all of them."""

    def halt(self, id: str, host: str) -> None:
        _have_script(id, host, psutil.Process.suspend)

    @contextmanager
    def until_heard(self, id: str, host: str, task: Path) -> Iterator[None]:
        """Only while the master has yet to hear of tasks does the script stand still afterwards.
        What Grid Engine has asked its shepherd for meanwhile it asks for again."""
        waiting = self._tasks.setdefault(task.parent, set())
        waiting.add(task)
        is_over = True
        try:
            yield
        except EncampError as error:
            is_over = not error.transient
            raise
        finally:
            if is_over:
                waiting.discard(task)
            if not (waiting and self.is_unheard(task)):
                _have_script(id, host, _go_on)
            if not waiting:
                self._tasks.pop(task.parent, None)
                self._since.pop(task.parent, None)

    def is_unheard(self, task: Path) -> bool:
        since = self._since.setdefault(task.parent, time.monotonic())
        return has_tasks(task.parent) and time.monotonic() - since < HEARD


def _have_script(id: str, host: str, act: Callable[[psutil.Process], None]) -> None:
    for each in shepherds():
        if (each.id, each.host, each.part) == (id, host, ""):
            with suppress(psutil.NoSuchProcess):
                act(psutil.Process(each.pid))


def _go_on(shepherd: psutil.Process) -> None:
    """One that was not halted would take the signal for the end of its job's suspension."""
    if shepherd.status() == psutil.STATUS_STOPPED:
        shepherd.resume()


def has_tasks(directory: Path) -> bool:
    """Each has a directory in the job's until the master has acknowledged its end."""
    try:
        return any(entry.is_dir() for entry in directory.iterdir())
    except OSError:
        return False
