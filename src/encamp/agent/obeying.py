"""Whom an agent obeys: the latest manager that it has heard of.

One that was stuck while another took over does not know it when it goes on. What it says then is
refused, also by an agent that was started anew in between.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from encamp.bus.frames import LINE, outranks
from encamp.home import Home
from encamp.model.errors import Code, EncampError

FILE = "manager.epoch"

log = logging.getLogger(__name__)


class Obedience:
    def __init__(self, home: Home) -> None:
        self._path = home.root / FILE
        self._latest: int | None = None

    def check(self, rank: int) -> None:
        """Is this how late a manager is whom we obey? 0: nobody knows."""
        if not rank:
            return
        if self._latest is None:
            self._latest = _read(self._path)
        if outranks(self._latest, rank):
            raise EncampError(
                Code.WRONG_STATE,
                f"A later manager leads the site: {_shown(self._latest)}, not {_shown(rank)}.",
                f"If there is none, because its clock was wrong, remove {self._path} and start the"
                " agent anew.",
                transient=True,
            )
        if rank != self._latest:
            # A later one; or one with another store, which begins anew.
            self._latest = rank
            self._write(rank)

    def _write(self, rank: int) -> None:
        """Before anything is done that it says."""
        unfinished = self._path.with_name(f"{FILE}.new")
        try:
            with open(unfinished, "w") as file:
                file.write(f"{rank}\n")
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(self._path)
        except OSError as error:
            log.warning("Which manager is the latest could not be written down: %s", error)


def _shown(rank: int) -> int:
    """Without what says of which store."""
    return rank & ((1 << LINE) - 1)


def _read(path: Path) -> int:
    try:
        return int(path.read_text())
    except FileNotFoundError:
        return 0
    except (OSError, ValueError) as error:
        log.warning("Which manager was the latest cannot be read: %s", error)
        return 0
