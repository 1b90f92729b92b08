"""How jobs of a private Grid Engine are lost, and what is seen of it: their files, processes and
records."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from encamp.agent.bait.records import found
from encamp.batch.gridengine.host import Process
from encamp.batch.gridengine.shepherd import shepherds
from encamp.model.batch_record import UNDER_WAY, BatchRecord, Outcome
from tests.batch.gridengine.camping import Camp, Person

MARKS = [
    pytest.mark.site,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("gridengine"),
    pytest.mark.usefixtures("agents"),
]
"""Of tests that lose something on the private site with its agents."""
MINI = ("-l", "env=mini", "-cwd")
COUNTS = "echo run $RESTARTED >>{file}\n"
WAITS = "while [ ! -e {file}.go ]; do sleep 0.1; done; echo done >>{file}; exit 6\n"


def file_of(alice: Person, name: str) -> Path:
    path = alice.directory / name
    path.write_text("")
    path.chmod(0o666)
    return path


def begin(camp: Camp, alice: Person, name: str, then: str = WAITS) -> tuple[str, Path]:
    """A job that has begun, and the file in which it notes its runs."""
    file = file_of(alice, name)
    id = camp.submit(alice, *MINI, script=COUNTS.format(file=file) + then.format(file=file))
    camp.wait_for("its first run", file.read_text)
    return id, file


def kill_machine(camp: Camp) -> None:
    [machine] = camp.wait_for("a machine", camp.machines)
    os.kill(machine, signal.SIGKILL)


def starter_of(camp: Camp, id: str) -> psutil.Process:
    [shepherd] = [each for each in shepherds() if each.id == id and each.host in camp.names]
    [starter] = psutil.Process(shepherd.pid).children()
    assert "encamp-starter" in starter.exe()
    return starter


def kill_starter(camp: Camp, id: str) -> None:
    starter_of(camp, id).kill()


def kill_starter_under(shepherd: int) -> None:
    """The starter of a job that has others, too."""
    below = psutil.Process(shepherd).children(recursive=True)
    [starter] = [each for each in below if each.name() == "encamp-starter"]
    starter.kill()


def kill_starter_and_guard(camp: Camp, id: str) -> None:
    """In this order: a starter that is there has another guard at once."""
    starter = starter_of(camp, id)
    [guard] = [each for each in starter.children() if each.name() == "encamp-guard"]
    starter.kill()
    guard.kill()


def is_over(pid: int) -> bool:
    """Whoever has begun it may not look for its end at the moment."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def is_gone(camp: Camp, id: str) -> bool:
    return not camp.state(id)


def is_run_again(file: Path) -> bool:
    return file.read_text() == "run 0\nrun 1\n"


def outcomes_of(camp: Camp, id: str) -> list[Outcome]:
    """Once each is known."""

    def known() -> list[Outcome]:
        outcomes = [record.outcome for record in records_of(camp, id)]
        return [] if UNDER_WAY & set(outcomes) else outcomes

    outcomes: list[Outcome] = camp.wait_for(f"what became of job {id}", known)
    return outcomes


def records_of(camp: Camp, id: str) -> list[BatchRecord]:
    """On all hosts, the latest first."""
    records = [one for host in camp.site.hosts for one in found(camp.home(host), id=id)]
    return sorted(records, key=lambda one: -one.came)


@contextmanager
def standing_still(daemon: Process) -> Iterator[None]:
    daemon.kill(signal.SIGSTOP)
    try:
        yield
    finally:
        daemon.kill(signal.SIGCONT)
        # What leads into its namespaces stands still as long as it does.
        daemon.outer.send_signal(signal.SIGCONT)


@contextmanager
def master_away(camp: Camp) -> Iterator[None]:
    assert camp.site.qmaster is not None
    camp.site.qmaster.kill()
    try:
        yield
    finally:
        camp.site.start_qmaster()
        camp.wait_for("the master", camp.site.answers)
