"""Watching the machines of a host: who comes, changes and goes, whoever it is that moves them."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from encamp.agent import owned
from encamp.agent.commands.starting import clear_idle, recover_owner
from encamp.agent.journal import Journal
from encamp.agent.recovery import recover
from encamp.agent.vanished import end_vanished
from encamp.home import Home
from encamp.model.errors import EncampError
from encamp.model.machine import IDLE_FOR, Machine

log = logging.getLogger(__name__)

LOOK = 1.0
"""Seconds between two looks at the journal."""
AGREE = 5
"""Every so many looks the journal is put in agreement with the processes that there are."""
SOON, LATE = 5.0, 60.0
"""Seconds after which what could not be put right in another owner's home is tried again: it may
only have been too early. They double from one time to the next."""
PATIENCE = 2.0
"""Seconds that a look waits for what is put right there; then it goes on, and so does that."""

TROUBLE = (EncampError, OSError, RuntimeError)
"""What may be wrong with one look, and not with the next; the last if there is no room for another
thread."""


class MachineWatch:
    def __init__(self, home: Home, changed: Callable[[], None]) -> None:
        self._home = home
        self._journal = Journal(home)
        self._changed = changed
        self._stamp: object = None
        self._reading = threading.Lock()
        self._tried: dict[int, tuple[frozenset[str], float, float]] = {}
        """Where what was put right in others' homes, when it may be tried again, and how long that
        is since it was."""
        self._at_work: dict[int, threading.Thread] = {}
        """Those who just do so."""
        self.machines: tuple[Machine, ...] = ()

    async def run(self) -> None:
        """Until cancelled."""
        looks, told = 0, ""
        while True:
            try:
                await asyncio.to_thread(self.look, agree=looks % AGREE == 0)
                told = ""
            except TROUBLE as error:
                # The next look may be better, and the agent has other work to do.
                if str(error) != told:
                    told = str(error)
                    log.warning("The machines of this host could not be looked at: %s", told)
            looks += 1
            await asyncio.sleep(LOOK)

    def look(self, *, agree: bool) -> bool:
        """See what has changed, and whether anything has; `agree`: look for processes that have
        ended, too. Several may look at a time."""
        if agree:
            end_vanished(self._home)
            recover(self._home)
            self._recover_owners()
            self._clear_idle()
        with self._reading:
            return self._read()

    def _read(self) -> bool:
        stamp = self._stamps(), owned.stamps(self._home)
        if stamp == self._stamp:
            return False
        own = self._journal.all()
        ids = {machine.id for machine in own}
        others = owned.believed(owned.records(self._home))
        machines = (*own, *(machine for _, machine in others if machine.id not in ids))
        self._stamp = stamp
        if machines == self.machines:
            return False
        self.machines = machines
        self._changed()
        return True

    def _recover_owners(self) -> None:
        """Only an owner works in that owner's home, by a process that is begun if there is
        something to do."""
        now = time.monotonic()
        # Whoever else looks may add to them meanwhile.
        at_work = list(self._at_work.items())
        self._at_work = {uid: thread for uid, thread in at_work if thread.is_alive()}
        begun = []
        for uid, names in owned.disagreeing(self._home).items():
            tried, at, pause = self._tried.get(uid, (frozenset(), 0.0, SOON))
            if uid not in self._at_work and (names != tried or now > at):
                pause = min(LATE, 2 * pause) if names == tried else SOON
                self._tried[uid] = names, now + pause, pause
                thread = threading.Thread(target=self._recover_owner, args=(uid,), daemon=True)
                thread.start()
                self._at_work[uid] = thread
                begun.append(thread)
        for thread in begun:
            thread.join(max(0.0, now + PATIENCE - time.monotonic()))

    def _recover_owner(self, uid: int) -> None:
        """An owner can hold that up, and nothing but that."""
        with suppress(EncampError, OSError, KeyboardInterrupt):
            recover_owner(self._home, uid)

    def _clear_idle(self) -> None:
        since = time.time() - IDLE_FOR
        if any(machine.idle and machine.changed < since for machine in self.machines):
            self.end_idle(since)

    def end_idle(self, since: float | None = None) -> None:
        """Remove machines that stand idle: all of them, or those that do since before then."""
        old = [
            (uid, machine)
            for uid, machine in owned.everybodys(self._home)
            if machine.idle and (since is None or machine.changed < since)
        ]
        clear_idle(self._home, old)

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
