"""The log of a build: all that programs said, kept in a file if the build fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from encamp.home import Home
from encamp.model.errors import EncampError
from encamp.workplace import Workplace, write_private

NAME = "log"


def kept_log(home: Home, recipe: str) -> Path:
    """Where the log of a recipe's last build is, if that failed. It goes as kept steps go."""
    return home.cache / "steps" / f"{recipe}.log"


@contextmanager
def opened_log(work: Workplace) -> Iterator[TextIO]:
    """The log of the build in a workplace, to write on."""
    path = work.directory / NAME
    if not path.exists():
        write_private(path, "")
    with path.open("a") as log:
        yield log


@contextmanager
def keeping_log(home: Home, recipe: str, work: Workplace) -> Iterator[None]:
    """Keep the log of a build that fails, until the recipe is built again."""
    kept = kept_log(home, recipe)
    kept.unlink(missing_ok=True)
    try:
        yield
    except EncampError:
        if (work.directory / NAME).exists():
            kept.parent.mkdir(exist_ok=True)
            (work.directory / NAME).replace(kept)
        raise
