"""A guest that has its kernel's process in its hands, and means harm."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.machines.supervisor import running
from tests.machines.supervisor.running import PACKAGE, Machine, alive, until

FUZZ = PACKAGE / "machines" / "encamp-supervisor-fuzz"
WRONGLY = "encamp-supervisor: the machine is ended: its kernel "


@contextmanager
def hostile(tmp_path: Path, what: str) -> Iterator[Machine]:
    """A supervisor whose kernel is kernel.py."""
    program = tmp_path / "kernel"
    script = Path(__file__).with_name("kernel.py")
    program.write_text(f"#!{sys.executable} -S\n{script.read_text()}")
    program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(running, "KERNEL", running.Kernel(program))
        with running.running(tmp_path / "machine", tmp_path / "nothing", what) as machine:
            yield machine


def test_device_survives_what_no_kernel_should_do() -> None:
    subprocess.run(["make", "-s", "-C", PACKAGE / "machines" / "supervisor", "fuzz"], check=True)
    for seed in range(3):
        words = [str(FUZZ), str(seed), "1000"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert not done.stdout.startswith("done, 0")


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("unknown", "asks its device for what that does not know"),
        ("long", "says more to its device than there is to say"),
        ("no memory", "shows no memory"),
        ("short memory", "shows memory that is not there"),
        ("no file", "shows memory that is not there"),
        ("outside", "has a queue outside its memory"),
        ("nowhere", "starts a queue that is nowhere"),
        ("many", "sets up a queue that is not there, or that works"),
        ("size", "has a queue of an impossible size"),
        ("config", "asks for a configuration of another kind"),
        ("calls", "shows no socket for interrupts"),
        ("chain", "makes a chain of no end"),
        ("address", "offers a buffer outside its memory"),
        ("full", "asks and does not listen"),
    ],
)
def test_device_that_is_driven_wrongly_ends_the_machine(
    tmp_path: Path, what: str, sentence: str
) -> None:
    with hostile(tmp_path, what) as machine:
        assert machine.process.wait(20) == 1
        assert machine.said() == f"{WRONGLY}{sentence}\n"


def test_memory_that_vanishes_ends_the_machine(tmp_path: Path) -> None:
    with hostile(tmp_path, "gone") as machine:
        assert machine.process.wait(20) == 1
        assert machine.said() == "encamp-supervisor: the machine's memory cannot be reached\n"
        assert not (machine.place / "vhost").exists()


def test_kernel_that_kicks_all_the_time_keeps_nobody_from_asking(tmp_path: Path) -> None:
    with hostile(tmp_path, "busy") as machine:
        time.sleep(0.3)
        for _ in range(10):
            assert machine.ask("status") == "running"


def test_others_than_the_kernel_are_turned_away(tmp_path: Path) -> None:
    with hostile(tmp_path, "strangers") as machine:
        assert machine.process.wait(20) == 0, machine.console.read_text()
        assert machine.said() == ""


def test_children_that_hide_are_ended_too(tmp_path: Path) -> None:
    with hostile(tmp_path, "children") as machine:
        until(lambda: len(machine.pids()) == 6)
        pids = machine.pids()
        machine.process.terminate()
        assert machine.process.wait(20) == 143
        assert alive(pids) == []
