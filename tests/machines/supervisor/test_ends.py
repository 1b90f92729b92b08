"""How a machine ends, and what is left of it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.machines.supervisor.running import (
    SUPERVISOR,
    Kernel,
    Machine,
    alive,
    in_session,
    running,
    ticks,
    until,
)


def left(machine: Machine) -> set[str]:
    """What is in its directory that was not there before."""
    sockets = {path.name for path in machine.place.iterdir() if path.is_socket()}
    return {path.name for path in machine.place.iterdir()} - sockets - {"console", "errors"}


@pytest.mark.parametrize("word", ["off", "halt", "reboot"])
def test_guest_that_switches_off_ends_it_cleanly(machine: Machine, word: str) -> None:
    assert machine.command("names")
    pids = machine.pids()
    assert machine.command(word) == ""
    assert machine.process.wait(10) == 0
    assert machine.said() == ""
    assert left(machine) == set()
    assert alive(pids) == []


def test_last_words_are_heard(machine: Machine) -> None:
    """The guest ends before the supervisor may have looked at what it wrote."""
    assert machine.command("last words") == ("bye " * 1000).strip()
    assert machine.process.wait(10) == 0


def test_panic_is_no_clean_end(machine: Machine) -> None:
    assert machine.command("crash") == ""
    assert machine.process.wait(10) == 1
    assert machine.said() == "encamp-supervisor: the kernel ended by signal 6\n"
    assert left(machine) == set()
    assert "sysrq triggered crash" in machine.console.read_text()


def test_kernel_that_leaves_its_device_is_ended(machine: Machine) -> None:
    machine.command("unplug")
    assert machine.process.wait(20) == 1
    assert machine.said() == (
        "encamp-supervisor: the machine is ended: its kernel has left its device\n"
    )


def test_kernel_that_does_not_come_up(tmp_path: Path, initramfs: Path) -> None:
    with running(tmp_path / "machine", initramfs, "mem=1M") as machine:
        assert machine.process.wait(10) == 1
        assert machine.said().startswith("encamp-supervisor: the kernel ended ")
        assert left(machine) == set()


def test_kernel_that_cannot_be_run(tmp_path: Path, initramfs: Path) -> None:
    name = "tests.machines.supervisor.running.KERNEL"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(name, Kernel(tmp_path / "nothing"))
        with running(tmp_path / "machine", initramfs) as machine:
            assert machine.process.wait(10) == 1
            said = machine.said()
    assert f"cannot run {tmp_path}/nothing: No such file" in said
    assert "the kernel ended with status 127" in said


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_ends_it(machine: Machine, seccomp: bool, number: int, status: int) -> None:
    assert machine.command("burn") == "ok"
    pids = machine.pids()
    assert len(pids) > 5
    os.kill(machine.process.pid, number)
    assert machine.process.wait(10) == status
    assert alive(pids) == []
    assert left(machine) == set()


@pytest.mark.parametrize("work", ["names", "burn", "forks"])
def test_supervisor_that_is_killed_takes_all_with_it(
    tmp_path: Path, initramfs: Path, seccomp: bool, work: str
) -> None:
    with running(tmp_path / "machine", initramfs, seccomp=seccomp) as machine:
        assert machine.command(work)
        time.sleep(random.random() / 10)
        pids = machine.pids()
        machine.process.kill()
        machine.process.wait()
        until(lambda: not alive(pids), 5)


@pytest.mark.parametrize("work", ["names", "burn", "forks"])
def test_kernel_that_is_killed_takes_all_with_it(
    tmp_path: Path, initramfs: Path, seccomp: bool, work: str
) -> None:
    with running(tmp_path / "machine", initramfs, seccomp=seccomp) as machine:
        assert machine.command(work)
        time.sleep(random.random() / 10)
        pids = machine.pids()
        os.kill(machine.kernel(), signal.SIGKILL)
        assert machine.process.wait(10) == 1
        assert machine.said() == "encamp-supervisor: the kernel ended by signal 9\n"
        assert alive(pids) == []
        assert left(machine) == set()


def test_not_even_a_process_that_just_begins_is_left(
    tmp_path: Path, initramfs: Path, seccomp: bool
) -> None:
    kernels: list[int] = []
    for turn in range(15):
        place = tmp_path / f"machine{turn}"
        with running(place, initramfs, roles="c", seccomp=seccomp) as machine:
            for _ in range(3):
                assert machine.command("forks") == "ok"
            time.sleep(random.random() / 20)
            kernels.append(machine.kernel())
            machine.process.kill()
            machine.process.wait()
    until(lambda: not any(map(in_session, kernels)), 5)


def test_what_an_earlier_life_has_left_is_in_nobodys_way(tmp_path: Path, initramfs: Path) -> None:
    place = tmp_path / "machine"
    with running(place, initramfs) as machine:
        assert machine.command("names")
        machine.process.kill()
        machine.process.wait()
        assert left(machine) == {"uml"}
    # The number is that of a process that lives.
    (place / "uml" / "pid").write_text(f"{os.getpid()}\n")
    for path in place.iterdir():
        if path.is_socket():
            path.unlink()
    with running(place, initramfs) as machine:
        assert machine.command("names")
        assert left(machine) == {"uml"}


def test_kernel_has_none_of_the_sockets(machine: Machine) -> None:
    assert machine.command("names")
    inodes = set()
    for line in Path("/proc/net/unix").read_text().splitlines():
        if str(machine.place) in line:
            inodes.add(f"socket:[{line.split()[6]}]")
    opened = {str(path.readlink()) for path in Path(f"/proc/{machine.kernel()}/fd").iterdir()}
    assert inodes
    assert not inodes & opened


def test_console_may_reach_its_limit(tmp_path: Path, initramfs: Path, seccomp: bool) -> None:
    limit = 200 << 20  # Its memory is a file, too.
    place = tmp_path / "machine"
    with running(place, initramfs, roles="c", seccomp=seccomp, file_limit=limit) as machine:
        assert machine.command("names")
        with machine.console.open("r+b") as file:
            file.truncate(limit - 1000)
        assert machine.command("flood 100000") == "ok"
        assert machine.command("say 1000") == "ok"
        assert machine.command("flood 100000") == "ok"
        assert machine.console.stat().st_size == limit
        before = ticks(machine.pids())
        time.sleep(1)
        assert ticks(machine.pids()) - before < 30
        assert machine.command("off") == ""
        assert machine.process.wait(10) == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "needs --console, --monitor, --port and -- KERNEL\n"),
        ("--monitor 99 --port a=99 -- kernel", "cannot use descriptor 99: Bad file descriptor\n"),
        ("--port nothing", "cannot have the port nothing\n"),
        ("--what", "does not understand --what\n"),
        ("--monitor x", "is given no descriptor: x\n"),
    ],
)
def test_wrong_words_are_refused(tmp_path: Path, words: str, sentence: str) -> None:
    command = [str(SUPERVISOR), *words.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"encamp-supervisor: {sentence}"
    assert list(tmp_path.iterdir()) == []
