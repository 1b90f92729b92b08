"""What an agent knows of the manager's store: how far it had come when it was last heard of.

A store that was put back from a backup knows less. The manager that uses it would run again what
ran since the backup; an agent that tells it how far its store had come keeps it from that.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from encamp.bus.frames import outranks
from encamp.bus.messages import Written
from encamp.home import Home

FILE = "manager.written"
LINE = "{:020d} {:020d}\n"
"""Of one length, so that each is written over the former without making a new file."""

log = logging.getLogger(__name__)


class Witness:
    def __init__(self, home: Home) -> None:
        self._path: Path = home.root / FILE
        self._known = _read(self._path)

    @property
    def written(self) -> Written | None:
        """None: no manager has told anything yet."""
        return self._known

    def heard(self, told: Written) -> None:
        """Remember it, if it is news. The disk is not waited for: whoever loses power loses what a
        witness knew, and nothing else."""
        known = self._known
        if known is not None and outranks(known.rank, told.rank):
            return
        if known is not None and known.rank == told.rank and known.number >= told.number:
            return
        self._known = told
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(file, LINE.format(told.rank, told.number).encode(), 0)
            finally:
                os.close(file)
        except OSError as error:
            log.warning("How far the manager's store has come is not written down: %s", error)


def _read(path: Path) -> Written | None:
    try:
        rank, number = map(int, path.read_text().split())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("How far the manager's store had come cannot be read: %s", error)
        return None
    return Written(rank=rank, number=number)
