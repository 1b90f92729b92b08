"""Who is there: kept by whoever watches, from everybody's signs of life.

No clock and no network here: the bus tells what it hears and when, sweeps from time to time, and
carries out the probes that are asked for. A participant whose sign of life is late is probed. If
the server knows nobody of that name, its connection was closed without a goodbye; if nothing comes
back at all, it is lost when it has been silent for long enough.

Our own signs of life come back to us, too. While they do not, it is us who is cut off, and
nobody else's silence means anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from encamp.bus.bus import Membership, Watcher
from encamp.bus.frames import ALIVE, LIFE
from encamp.model.host import Presence
from encamp.model.site import Presences

LATE = 1.5
"""Intervals without a sign of life after which a participant is probed."""
RESTLESS = 0.25
"""Intervals that must pass between two changes of one participant: who comes and goes faster than
that is told of with its next sign of life, and cannot drown whoever watches."""
MOST_GROUPS = 100

GOODBYE = "it said goodbye"
ENDED = "its connection was closed without a goodbye: its process ended or was killed"
RESTARTED = "it was started anew without a goodbye"


class Known:
    """One who is there."""

    __slots__ = ("absent", "groups", "heard", "life", "name", "run")

    def __init__(self, name: str, life: bytes, run: int, groups: tuple[str, ...], heard: float):
        self.name = name
        self.life = life
        """Its sign of life, as it was last heard; empty: it has only said something else."""
        self.run = run
        self.groups = groups
        self.heard = heard
        self.absent = 0
        """How often in a row the server said that it is not connected."""


class Roll:
    def __init__(
        self, me: str, presence: Presences, watcher: Watcher, probe: Callable[[str], None]
    ) -> None:
        self._me = me
        self._presence = presence
        self._watcher = watcher
        self._probe = probe
        self._known: dict[str, Known] = {}
        self._replaced: dict[str, int] = {}
        """The run before the present one, of those who were started anew."""
        self._changed: dict[str, float] = {}
        """When it last came or went."""
        self._echo = 0.0
        """When we last heard ourselves."""
        self.is_cut_off = True
        self._lenient_until = 0.0
        """Until then, one who is not connected may still be reconnecting."""

    def heard(self, name: str, life: bytes, now: float) -> None:
        known = self._known.get(name)
        if known is not None and known.life == life:
            known.heard = now
            known.absent = 0
        elif name == self._me:
            self._hear_ourselves(now)
        elif len(life) >= LIFE.size:
            self._hear_news(name, known, life, now)

    def forget(self, name: str) -> None:
        """It was lost long ago."""
        self._replaced.pop(name, None)
        self._changed.pop(name, None)

    def answered(self, name: str, now: float) -> None:
        """A probe was answered."""
        known = self._known.get(name)
        if known is not None:
            known.heard = now
            known.absent = 0

    def said(self, name: str, run: int, now: float) -> None:
        """Whatever it says, it is alive. Who always has something to say gives no other sign of
        life, so one who is not known yet is there by that."""
        if name in self._known:
            self.answered(name, now)
        elif self._may_come(name, run, now):
            self._come(Known(name, b"", run, (), now))

    def came_back(self, now: float) -> None:
        """Our connection was broken, and others' perhaps with it: all get their time again."""
        self._lenient_until = now + self._presence.silence
        for known in self._known.values():
            known.heard = now
            known.absent = 0

    def absent(self, name: str, now: float) -> None:
        """The server knows nobody of that name. Twice: it might just be reconnecting."""
        known = self._known.get(name)
        if known is None or self.is_cut_off or now < self._lenient_until:
            return
        known.absent += 1
        if known.absent >= 2:
            self._lose(known, ENDED)

    def sweep(self, now: float) -> None:
        interval, silence = self._presence.interval, self._presence.silence
        if now - self._echo > LATE * interval:
            self.is_cut_off = True
        if self.is_cut_off:
            return
        late = now - LATE * interval
        lost = now - silence
        for known in [each for each in self._known.values() if each.heard < late]:
            if known.heard < lost:
                self._lose(
                    known,
                    f"nothing was heard of it for {silence:g} seconds: it is stuck, or the network"
                    " to it is cut",
                )
            else:
                self._probe(known.name)

    def _hear_ourselves(self, now: float) -> None:
        is_first = self._echo == 0.0
        self._echo = now
        if self.is_cut_off:
            self.is_cut_off = False
            if not is_first:
                self.came_back(now)

    def _hear_news(self, name: str, known: Known | None, life: bytes, now: float) -> None:
        kind, run = LIFE.unpack_from(life)
        if kind != ALIVE:
            if known is not None and known.run == run:
                del self._known[name]
                self._replaced.pop(name, None)
                self._watcher(Membership(name, Presence.LEFT, known.groups, GOODBYE))
            return
        if not self._may_come(name, run, now):
            return
        if known is not None and known.run != run:
            self._lose(known, RESTARTED)
            self._replaced[name] = known.run
        said = life[LIFE.size :].decode(errors="replace").split(" ", MOST_GROUPS)
        groups = tuple(group for group in said[:MOST_GROUPS] if group)
        self._come(Known(name, life, run, groups, now))

    def _may_come(self, name: str, run: int, now: float) -> bool:
        if self._replaced.get(name) == run:
            return False
        return now - self._changed.get(name, -math.inf) >= RESTLESS * self._presence.interval

    def _come(self, one: Known) -> None:
        is_new = one.name not in self._known
        self._known[one.name] = one
        if is_new:
            self._changed[one.name] = one.heard
            self._watcher(Membership(one.name, Presence.JOINED, one.groups))

    def _lose(self, known: Known, reason: str) -> None:
        del self._known[known.name]
        self._replaced.pop(known.name, None)
        self._watcher(Membership(known.name, Presence.LOST, known.groups, reason))
