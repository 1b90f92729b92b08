from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machines.shares.mounted import Mounted, mounted


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The directory that is shared."""
    source = tmp_path / "source"
    source.mkdir()
    return source


@pytest.fixture
def machine(source: Path, tmp_path: Path) -> Iterator[Mounted]:
    with mounted(tmp_path / "one", source) as shown:
        yield shown


@pytest.fixture
def other(machine: Mounted, source: Path, tmp_path: Path) -> Iterator[Mounted]:
    """A second machine with the same share."""
    with mounted(tmp_path / "two", source) as shown:
        yield shown
