"""One `mini` is built for all these tests; the rest share what was fetched for it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from encamp.describe.shipped import DEBIAN12, MINI
from encamp.home import Home
from encamp.images.store import ImageStore
from encamp.model.image import Image


class Told:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.what: list[str] = []
        self.fractions: list[float] = []

    def update(self, what: str, fraction: float | None = None) -> None:
        self.what.append(what)
        if fraction is not None:
            self.fractions.append(fraction)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture(scope="session")
def first_build() -> Told:
    """The progress of the session's first build of `mini`."""
    return Told()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, first_build: Told) -> Home:
    """A home where `mini` was built from nothing. For reading only."""
    home = Home(tmp_path_factory.mktemp("built") / "home").prepare()
    ImageStore(home, shared=None).ensure(MINI, first_build)
    return home


@pytest.fixture(scope="session")
def debian_build() -> Told:
    """The progress of the session's first build of `debian12`."""
    return Told()


@pytest.fixture(scope="session")
def debian_home(built: Home, debian_build: Told, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home where `debian12` was built, too. For reading only."""
    home = Home(tmp_path_factory.mktemp("debian") / "home").prepare()
    stock(home, built)
    ImageStore(home, shared=None).ensure(DEBIAN12, debian_build)
    return home


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
    shutil.copytree(built.images, home.images, dirs_exist_ok=True)
    found = ImageStore(home, shared=None).find(MINI.name, MINI.digest())
    assert found is not None
    return found


def stock(home: Home, built: Home) -> None:
    shutil.copytree(built.cache, home.cache, dirs_exist_ok=True)


def left_over(home: Home) -> list[str]:
    """What a build left behind, beside what it keeps on purpose."""
    kept = ("apt-", "kernels", "environments", "steps")
    return sorted(path.name for path in home.cache.iterdir() if not path.name.startswith(kept))
