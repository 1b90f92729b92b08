"""What is built once for the whole suite, and what its builders said meanwhile."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

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


def built_once(
    factory: pytest.TempPathFactory, name: str, told: Told, build: Callable[[Home], None]
) -> Home:
    """Of all processes that share the work, the first that wants it builds it. The others wait, and
    are told what its builder said."""
    place = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent
    said = place / f"{name}.json"
    home = Home(place / name)
    with Path(place / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if said.exists():
            told.what, told.fractions = json.loads(said.read_text())
        else:
            shutil.rmtree(home.root, ignore_errors=True)
            build(home.prepare())
            said.write_text(json.dumps([told.what, told.fractions]))
    return home


def stock(home: Home, built: Home) -> None:
    """Give a home the packages, and the steps of builds, that another has."""
    shutil.copytree(built.cache, home.cache, dirs_exist_ok=True)


VERDICT = "accelerator.json"
"""In a home: whether KVM is to be trusted. It is not there where nobody could open the device."""


def give_verdict(home: Home, tried: Home) -> None:
    """Spare a home the trial of KVM that another has made."""
    with suppress(FileNotFoundError):
        shutil.copy(tried.root / VERDICT, home.root)


@contextmanager
def verdict_kept(home: Home) -> Iterator[None]:
    """Whatever a test has a home believe of KVM is forgotten afterwards."""
    path = home.root / VERDICT
    before = path.read_bytes() if path.exists() else None
    try:
        yield
    finally:
        if before is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(before)


def give_images(home: Home, built: Home) -> None:
    """Give a home the images that another has."""
    shutil.copytree(built.images, home.images, dirs_exist_ok=True)
