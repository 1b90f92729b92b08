"""A private Slurm for all tests of a file, which says as `shared` what it needs; after each test,
nothing of its jobs is left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.batch.slurm.camping import Camp
from tests.batch.slurm.private import User


@pytest.fixture
def camp(shared: Camp) -> Iterator[Camp]:
    yield shared
    shared.clear()


@pytest.fixture
def user(camp: Camp) -> User:
    return camp.users[0]
