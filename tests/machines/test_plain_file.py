"""What a machine's process left in its directory is taken for nothing but what it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from encamp.machines.directory import MachineDirectory, tail
from encamp.machines.storage_file import SparseFile
from encamp.machines.template import freeze_file
from encamp.model.errors import Code, EncampError

Put = Callable[[Path, Path], None]
"""Puts something in the place of a file, which may lead to a victim."""


def link(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def second_name(path: Path, victim: Path) -> None:
    os.link(victim, path)


def pipe(path: Path, victim: Path) -> None:
    os.mkfifo(path)


def endless(path: Path, victim: Path) -> None:
    path.symlink_to("/dev/zero")


def directory(path: Path, victim: Path) -> None:
    path.mkdir()


STRANGE = [link, second_name, pipe, endless, directory]


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("secret")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("put", STRANGE)
def test_disk_that_was_replaced_does_not_become_a_templates(
    tmp_path: Path, victim: Path, put: Put
) -> None:
    machine = MachineDirectory(tmp_path / "machine")
    machine.make(None, 0)
    made = tmp_path / "made"
    made.mkdir()
    put(machine.disk, victim)
    with pytest.raises(EncampError, match="not the file it was made as") as refused:
        SparseFile().keep(machine, made)
    assert refused.value.code is Code.CORRUPT
    assert victim.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("put", STRANGE)
def test_freezing_changes_no_file_but_the_one_that_is_named(
    tmp_path: Path, victim: Path, put: Put
) -> None:
    path = tmp_path / "state"
    put(path, victim)
    with pytest.raises(OSError, match="state"):
        freeze_file(path, None)
    assert victim.stat().st_mode & 0o777 == 0o600


def test_frozen_file_can_be_read_by_its_owner_and_written_by_nobody(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.touch(0o600)
    freeze_file(path, None)
    assert path.stat().st_mode & 0o777 == 0o400


@pytest.mark.parametrize("put", [link, pipe, endless, directory])
def test_console_that_was_replaced_has_no_last_words(
    tmp_path: Path, victim: Path, put: Put
) -> None:
    path = tmp_path / "console"
    put(path, victim)
    assert tail(path, 4096) == ""


def test_last_words_are_the_end_and_control_no_terminal(tmp_path: Path) -> None:
    path = tmp_path / "console"
    path.write_bytes(b"first\r\nsecond \x1b[2J\n")
    assert tail(path, 12) == "second \N{REPLACEMENT CHARACTER}[2J\n"


def nest(path: Path, depth: int) -> None:
    """Directories within directories, to a depth that no path could name."""
    path.mkdir()
    inner = os.open(path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=inner)
        outer, inner = inner, os.open("d", os.O_RDONLY, dir_fd=inner)
        os.close(outer)
    os.close(inner)


def test_directory_that_was_nested_without_end_can_be_removed(tmp_path: Path) -> None:
    machine = MachineDirectory(tmp_path / "machine")
    machine.make(None, 0)
    nest(machine.run / "deep", 1100)
    machine.remove()
    assert list(tmp_path.iterdir()) == []
