"""Which processes are machines: nobody else can have them counted by calling a process one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from encamp.machines import room
from encamp.machines.standing import Standing, standing
from encamp.model.size import MIB

ANN, BEN = 65533, 65534
GIB = 1024 * MIB
ID = "0" * 31
NAMED = ("-name", f"encamp-{ID}1", "-smp", "1", "-m", f"{GIB // 1024}K")
WAITING = "print(flush=True); input()"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that other accounts can enter."""
    with tempfile.TemporaryDirectory(prefix="encamp-standing-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@contextmanager
def running(program: Path, user: int) -> Iterator[int]:
    """A process that says it is a machine's."""
    pipe = subprocess.PIPE
    words = ["python", "-I", "-S", "-c", WAITING, *NAMED]
    with subprocess.Popen(
        words, executable=program, user=user, group=user, stdin=pipe, stdout=pipe, cwd="/"
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid


def copied(place: Path, owner: int) -> Path:
    program = place / "qemu-system-x86_64"
    shutil.copy(Path(sys.executable).resolve(), program)
    program.chmod(0o755)
    os.chown(program, owner, owner)
    return program


@as_root
def test_who_calls_a_process_a_machine_has_none(open_place: Path) -> None:
    program = copied(open_place, ANN)
    with running(program, ANN) as fake:
        assert Path(f"/proc/{fake}/comm").read_text() == "qemu-system-x86\n"
        assert fake not in [machine.pid for machine in standing()]
    link = open_place / "qemu-system-x86"
    link.symlink_to(Path(sys.executable).resolve())
    with running(link, ANN) as fake:
        assert Path(f"/proc/{fake}/comm").read_text() == "qemu-system-x86\n"
        assert fake not in [machine.pid for machine in standing()]


@as_root
def test_a_machine_is_whose_process_it_is(open_place: Path) -> None:
    program = copied(open_place, 0)
    with running(program, ANN) as genuine:
        (found,) = [machine for machine in standing() if machine.pid == genuine]
    assert (found.owner, found.name, found.cpus, found.memory) == (ANN, f"{ID}1", 1, GIB)


def test_no_other_user_makes_the_host_look_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "total_memory", lambda: 8 * GIB)
    others = [Standing(1, ANN, f"{ID}1", 1, 1000 * GIB, 0, 0)] * 5
    assert room.growth(others) == 4 * GIB
    honest = Standing(2, BEN, f"{ID}2", 1, GIB, GIB // 2, 0)
    ours = Standing(3, os.geteuid(), f"{ID}3", 1, 6 * GIB, 0, 0)
    assert room.growth([*others, honest, ours]) == 10 * GIB + GIB // 2
