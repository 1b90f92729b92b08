"""Only what can be a record is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from encamp.agent.journal import Journal
from encamp.home import Home
from encamp.small_file import LARGEST, read_small


def test_small_file_is_read_whole_also_by_a_link(tmp_path: Path) -> None:
    path = tmp_path / "record"
    path.write_bytes(b"x" * 1000)
    link = tmp_path / "link"
    link.symlink_to(path)
    assert read_small(path, 1000) == read_small(link) == b"x" * 1000


def plant_large(path: Path) -> None:
    path.touch()
    os.truncate(path, LARGEST + 1)


PLANTED: dict[str, Callable[[Path], None]] = {
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "silent": os.mkfifo,
    "large": plant_large,
    "directory": Path.mkdir,
}


@pytest.mark.parametrize("kind", PLANTED)
def test_what_can_be_no_record_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "planted"
    PLANTED[kind](path)
    with pytest.raises(OSError, match="planted"):
        read_small(path)


@pytest.mark.parametrize("kind", PLANTED)
def test_machine_whose_record_is_none_is_not_there(tmp_path: Path, kind: str) -> None:
    journal = Journal(Home(tmp_path / "home").prepare())
    id = "a" * 32
    directory = journal.directory(id)
    directory.path.mkdir(parents=True)
    PLANTED[kind](directory.record)
    assert journal.read(id) is None
    assert journal.all() == []
