"""The real starter, built to look for its door where a test can open it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.batch.starter.double import Door, build


@pytest.fixture(scope="session")
def starter_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("starter"))


@pytest.fixture(scope="session")
def impatient_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that does not wait for a minute for the agent."""
    return build(tmp_path_factory.mktemp("impatient"), PATIENCE_MS="300")


@pytest.fixture(scope="session")
def guarded_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that is still there when a test has found its guard."""
    return build(tmp_path_factory.mktemp("guarded"), PATIENCE_MS="2000")


@pytest.fixture
def closed_door(starter_program: Path) -> Iterator[Door]:
    door = Door(starter_program)
    try:
        yield door
    finally:
        door.end()


@pytest.fixture
def door(closed_door: Door) -> Door:
    closed_door.open()
    return closed_door


@pytest.fixture
def absent(impatient_program: Path) -> Iterator[Door]:
    """A door that nobody opens."""
    door = Door(impatient_program)
    try:
        yield door
    finally:
        door.end()
