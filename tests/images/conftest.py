"""Homes with more or less in them of what was built and fetched once."""

from __future__ import annotations

from pathlib import Path

import pytest

from encamp.describe.shipped import MINI
from encamp.home import Home
from encamp.images.store import ImageStore
from encamp.model.image import Image
from tests.builds import Told, give_images, stock


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """An empty home."""
    return Home(tmp_path / "home").prepare()


@pytest.fixture
def stocked(home: Home, built: Home) -> Home:
    """A home without images that has all packages already."""
    stock(home, built)
    return home


@pytest.fixture
def mini(home: Home, built: Home) -> Image:
    """`mini` in a home of this test's own."""
    give_images(home, built)
    found = ImageStore(home, shared=None).find(MINI.name, MINI.digest())
    assert found is not None
    return found


def left_over(home: Home) -> list[str]:
    """What a build left behind, beside what it keeps on purpose."""
    kept = ("apt-", "kernels", "environments", "steps")
    return sorted(path.name for path in home.cache.iterdir() if not path.name.startswith(kept))
