"""Has Grid Engine hear of a parallel job's tasks on a host before it hears of the script there.

If its daemon (8.1.9) is let go of a script that has tasks left, it keeps the job in mind for ever,
and never begins it again. Of a job that was put back because of one task, Grid Engine ends all at
once, and is told of the script first. So the script's shepherd stands still meanwhile.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from encamp.batch.gridengine.shepherd import EXIT_STATUS, shepherds
from encamp.model.errors import EncampError

HEARD = 120.0
"""Seconds in which the master has heard of all tasks: three times the usual `load_report_time`."""
LATE = 10.0
"""Seconds after that in which an agent has the script go on. If none has, it goes on by itself."""
KILLED = 5.0
"""Seconds in which a killed process has ended."""

GO_ON = """
{
    sleep "$1"
    read -r line <"/proc/$2/stat" || exit
    pid=$2 began=$3
    set -- ${line##*) }
    [ "$1" = T ] && [ "${20}" = "$began" ] && kill -CONT "$pid"
} >&- 2>&- &
echo $!
"""
"""Seconds, a process, and when that began, by the kernel's clock: it may be another one by then."""

LOG = logging.getLogger(__name__)


class Waker:
    """Has a shepherd that stands still go on in the end, whatever becomes of the agent: a process
    of its own, and nobody's child."""

    def __init__(self, shepherd: psutil.Process) -> None:
        stat = Path(f"/proc/{shepherd.pid}/stat").read_text()
        began = stat.rpartition(")")[2].split()[19]
        words = ["/bin/sh", "-c", GO_ON, "encamp-waker", f"{HEARD + LATE:g}", str(shepherd.pid)]
        told = subprocess.run(
            [*words, began],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
            check=True,
        )
        self._pid = int(told.stdout)
        self._process = os.pidfd_open(self._pid)

    def is_over(self, patience: float = 0.0) -> bool:
        return bool(select.select([self._process], [], [], patience)[0])

    def close(self) -> None:
        if not self.is_over():
            with suppress(ProcessLookupError):
                os.killpg(os.getpgid(self._pid), signal.SIGKILL)
            # A busy kernel takes a moment to end what was killed.
            self.is_over(KILLED)
        os.close(self._process)


class Halting:
    def __init__(self) -> None:
        self._since: dict[Path, float] = {}
        """Directories of jobs that have tasks which are waited for;"""
        self._tasks: dict[Path, set[Path]] = {}
        """and theirs. Each is looked after for itself, but the script is that of all of them."""
        self._wakers: dict[Path, Waker] = {}
        self._one = threading.Lock()

    @contextmanager
    def halted(self, id: str, host: str, task: Path) -> Iterator[None]:
        """The script stands still from here on, unless what is done in here fails: then it does as
        before."""
        with self._one:
            ours = self._halt(id, host, task.parent)
        try:
            yield
        except BaseException:
            with self._one:
                if ours:
                    self._let_go_on(id, host, task.parent)
            raise

    @contextmanager
    def until_heard(self, id: str, host: str, task: Path) -> Iterator[None]:
        """Only while the master has yet to hear of tasks does the script stand still afterwards.
        What Grid Engine has asked its shepherd for meanwhile it asks for again."""
        with self._one:
            for directory, waker in list(self._wakers.items()):
                if waker.is_over():
                    self._wakers.pop(directory).close()
            waiting = self._tasks.setdefault(task.parent, set())
            waiting.add(task)
        is_over = True
        try:
            yield
        except EncampError as error:
            is_over = not error.transient
            raise
        finally:
            with self._one:
                if is_over:
                    waiting.discard(task)
                if not (waiting and self.is_unheard(task)):
                    self._let_go_on(id, host, task.parent)
                if not waiting:
                    self._tasks.pop(task.parent, None)
                    self._since.pop(task.parent, None)

    def is_unheard(self, task: Path) -> bool:
        since = self._since.setdefault(task.parent, time.monotonic())
        return has_tasks(task.parent) and time.monotonic() - since < HEARD

    def _halt(self, id: str, host: str, directory: Path) -> bool:
        """False: it stands still already, or cannot."""
        scripts = list(_scripts(id, host))
        if any(_stands_still(script) for script in scripts):
            return False
        self._since[directory] = time.monotonic()
        for script in scripts:
            try:
                waker = Waker(script)
            except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
                LOG.warning("The script of job %s is not halted: %s", id, error)
                return False
            if (before := self._wakers.pop(directory, None)) is not None:
                before.close()
            self._wakers[directory] = waker
            with suppress(psutil.NoSuchProcess):
                script.suspend()
        return True

    def _let_go_on(self, id: str, host: str, directory: Path) -> None:
        """One that was not halted would take the signal for the end of its job's suspension."""
        for script in _scripts(id, host):
            if _stands_still(script):
                with suppress(psutil.NoSuchProcess):
                    script.resume()
        if (waker := self._wakers.pop(directory, None)) is not None:
            waker.close()


def _scripts(id: str, host: str) -> Iterator[psutil.Process]:
    for each in shepherds():
        if (each.id, each.host, each.part) == (id, host, ""):
            with suppress(psutil.NoSuchProcess):
                yield psutil.Process(each.pid)


def _stands_still(shepherd: psutil.Process) -> bool:
    try:
        return shepherd.status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def has_tasks(directory: Path) -> bool:
    """Each has a directory in the job's until the master has acknowledged its end. Of one that has
    ended long ago it knows: there are sites that keep them (KEEP_ACTIVE)."""
    try:
        return any(entry.is_dir() and not _is_long_over(entry) for entry in directory.iterdir())
    except OSError:
        return False


def _is_long_over(task: Path) -> bool:
    try:
        return time.time() - (task / EXIT_STATUS).stat().st_mtime > HEARD
    except OSError:
        return False
