"""Asking a machine's supervisor, and having it stop the machine."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.machines.supervisor.running import Machine, line, running, ticks, until


def rests(machine: Machine, seconds: float = 1.0) -> bool:
    """Has the machine no processor time?"""
    pids = machine.pids()
    before = ticks(pids)
    time.sleep(seconds)
    return ticks(pids) - before <= 1


def test_machine_says_whether_it_runs(machine: Machine) -> None:
    assert machine.ask("status") == "running"
    assert machine.command("names")
    assert machine.ask("pause") == "ok"
    assert machine.ask("pause") == "ok"
    assert machine.ask("status") == "paused"
    assert machine.ask("resume") == "ok"
    assert machine.ask("resume") == "ok"
    assert machine.ask("status") == "running"
    assert machine.ask("dance") == "error: this is not a command"
    assert machine.ask("x" * 100) == "error: this is not a command"


@pytest.mark.parametrize("work", ["names", "burn", "forks"])
def test_paused_machine_takes_no_time_and_goes_on(
    tmp_path: Path, initramfs: Path, seccomp: bool, work: str
) -> None:
    with running(tmp_path / "machine", initramfs, seccomp=seccomp) as machine:
        assert machine.command(work)
        for turn in range(10):
            time.sleep(0.013 * turn)
            assert machine.ask("pause") == "ok"
            assert rests(machine, 0.3)
            # Those who speak to it meanwhile are heard later.
            with machine.connect("encamp.0") as client:
                client.sendall(b"later\n")
                assert machine.ask("resume") == "ok"
                assert line(client) == "later"
        if work == "forks":
            assert machine.command("forking") == "yes"
        assert machine.process.poll() is None
        assert machine.said() == ""


def test_machine_can_be_paused_as_soon_as_it_says_so(
    tmp_path: Path, initramfs: Path, seccomp: bool
) -> None:
    """It boots meanwhile."""
    with running(tmp_path / "machine", initramfs, seccomp=seccomp) as machine:
        until(lambda: machine.ask("pause") == "ok")
        for _ in range(100):
            assert machine.ask("resume") == "ok"
            assert machine.ask("pause") == "ok"
        assert machine.ask("resume") == "ok"
        assert machine.command("names")


def test_paused_machine_can_be_ended(tmp_path: Path, initramfs: Path, seccomp: bool) -> None:
    with running(tmp_path / "machine", initramfs, seccomp=seccomp) as machine:
        assert machine.command("burn") == "ok"
        assert machine.ask("pause") == "ok"
        machine.process.terminate()
        assert machine.process.wait(10) == 143


def test_silent_clients_of_the_monitor_hold_up_nobody(machine: Machine) -> None:
    silent = [machine.connect("monitor") for _ in range(20)]
    silent[19].sendall(b"stat")
    assert machine.ask("status") == "running"
    with machine.connect("monitor") as client:
        client.sendall(b"sta")
        time.sleep(0.1)
        client.sendall(b"tus\n")
        assert line(client) == "running"
    assert machine.command("names")
    for client in silent:
        client.close()
    until(lambda: machine.ask("status") == "running")
