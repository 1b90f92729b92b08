"""What is built once for the whole suite, and what its builders said meanwhile."""

from __future__ import annotations

import shutil

from encamp.home import Home


class Told:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.what: list[str] = []
        self.fractions: list[float] = []

    def update(self, what: str, fraction: float | None = None) -> None:
        self.what.append(what)
        if fraction is not None:
            self.fractions.append(fraction)


def stock(home: Home, built: Home) -> None:
    """Give a home the packages, and the steps of builds, that another has."""
    shutil.copytree(built.cache, home.cache, dirs_exist_ok=True)


def give_images(home: Home, built: Home) -> None:
    """Give a home the images that another has."""
    shutil.copytree(built.images, home.images, dirs_exist_ok=True)
