"""Watching the machines of a host: who comes, changes and goes, whoever it is that moves them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from encamp.agent.journal import Journal
from encamp.agent.recovery import recover
from encamp.home import Home
from encamp.model.machine import Machine

LOOK = 1.0
"""Seconds between two looks at the journal."""
AGREE = 5
"""Every so many looks the journal is put in agreement with the processes that there are."""


class MachineWatch:
    def __init__(self, home: Home, changed: Callable[[], None]) -> None:
        self._home = home
        self._journal = Journal(home)
        self._changed = changed
        self._stamp: object = None
        self.machines: tuple[Machine, ...] = ()

    async def run(self) -> None:
        """Until cancelled."""
        looks = 0
        while True:
            await asyncio.to_thread(self.look, agree=looks % AGREE == 0)
            looks += 1
            await asyncio.sleep(LOOK)

    def look(self, *, agree: bool) -> None:
        """See what has changed; `agree`: look for processes that have ended, too."""
        if agree:
            recover(self._home)
        stamp = self._stamps()
        if stamp == self._stamp:
            return
        machines = tuple(self._journal.all())
        self._stamp = stamp
        if machines != self.machines:
            self.machines = machines
            self._changed()

    def _stamps(self) -> list[tuple[str, int, int]]:
        """Differs whenever a record does: each is replaced whole, by a new file."""
        found = []
        for machine_id in sorted(self._journal.ids()):
            try:
                status = os.stat(self._journal.directory(machine_id).record)  # noqa: PTH116
            except OSError:
                continue
            found.append((machine_id, status.st_ino, status.st_mtime_ns))
        return found
