"""Watching who is on the bus, over NATS: hears signs of life, sweeps, and probes the late ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from encamp.bus.bus import Membership, Watcher
from encamp.bus.frames import Reply
from encamp.bus.presence import Roll
from encamp.model.host import Presence
from encamp.model.site import Presences

SWEEPS = 4
"""In each interval between two signs of life."""
PROBES = 2000
"""At once, at most."""
FORGOTTEN = 3600.0
"""Seconds after which nothing is kept for one who was lost: the same run may come back before."""

log = logging.getLogger(__name__)

Probe = Callable[[str, float], Awaitable[Reply | None]]


class Watch:
    def __init__(
        self,
        me: str,
        presence: Presences,
        watcher: Watcher,
        *,
        probe: Probe,
        came_back: Callable[[str], None],
        forget: Callable[[str], None],
    ) -> None:
        self._interval = presence.interval
        self._watcher = watcher
        self._probe_by = probe
        self._came_back = came_back
        self._forget = forget
        self._roll = Roll(me, presence, self._tell, self._probe)
        self._gone: dict[str, float] = {}
        """Since when, the longest ago first."""
        self._probing: dict[str, asyncio.Task[None]] = {}
        self._loop = asyncio.get_running_loop()

    @property
    def is_cut_off(self) -> bool:
        """Do our own signs of life not come back?"""
        return self._roll.is_cut_off

    def hear(self, name: str, life: bytes) -> None:
        self._roll.heard(name, life, self._loop.time())

    def notice(self, name: str, run: int) -> None:
        """It said something."""
        self._roll.said(name, run, self._loop.time())

    def reconnected(self) -> None:
        self._roll.came_back(self._loop.time())

    async def run(self) -> None:
        try:
            while True:
                await asyncio.sleep(self._interval / SWEEPS)
                self._roll.sweep(self._loop.time())
                self._forget_old()
        finally:
            for task in self._probing.values():
                task.cancel()
            await asyncio.gather(*self._probing.values(), return_exceptions=True)

    def _tell(self, membership: Membership) -> None:
        name = membership.name
        self._gone.pop(name, None)
        match membership.presence:
            case Presence.JOINED:
                self._came_back(name)
            case Presence.LEFT:
                self._forget(name)
                self._gone[name] = self._loop.time()
            case Presence.LOST:
                self._gone[name] = self._loop.time()
        try:
            self._watcher(membership)
        except Exception:
            log.exception("whoever watches the bus could not be told of '%s'", name)

    def _forget_old(self) -> None:
        """Names come and go for good: what is kept for each must not add up."""
        until = self._loop.time() - FORGOTTEN
        while self._gone:
            name, since = next(iter(self._gone.items()))
            if since > until:
                return
            del self._gone[name]
            self._roll.forget(name)
            self._forget(name)

    def _probe(self, name: str) -> None:
        if name not in self._probing and len(self._probing) < PROBES:
            self._probing[name] = asyncio.create_task(self._probe_one(name))

    async def _probe_one(self, name: str) -> None:
        try:
            found = await self._probe_by(name, self._interval)
            if found is Reply.ABSENT:
                self._roll.absent(name, self._loop.time())
            elif found is Reply.HERE:
                self._roll.answered(name, self._loop.time())
        finally:
            del self._probing[name]
