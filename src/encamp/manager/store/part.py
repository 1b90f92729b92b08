"""What the parts of a store have in common: the one who works with the database, and what waits for
it in memory."""

from __future__ import annotations

from collections.abc import Collection

from encamp.manager.store.backlog import Backlog
from encamp.manager.store.log import MOST_NAMES, Log
from encamp.manager.store.worker import Worker
from encamp.model.errors import EncampError

PAGE = 1000
"""Entries that are read at once; others get a turn in between."""
MOST = 1_000_000
"""Entries that one question is answered with at most."""


class Part:
    _worker: Worker
    _backlog: Backlog

    async def _write_backlog(self, log: Log | None = None) -> None:
        """Until all that the log holds now is written, or has to wait."""
        upto = log.newest if log is not None else 0
        while not self._worker.trouble:
            try:
                await self._worker.write_backlog()
            except EncampError:
                if self._worker.ending:
                    raise
                return
            if log is None or log.written_upto >= upto:
                return


def page_size(names: Collection[str], most: int) -> int:
    """Entries to read at once: no more than are wanted, if the database chooses them."""
    return PAGE if len(names) > MOST_NAMES else min(PAGE, most)
