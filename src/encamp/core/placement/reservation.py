"""Room that is kept free for the first in the queue, so that many small requests cannot hold up a
large one for ever: nothing else is placed there unless enough is left."""

from __future__ import annotations

from collections.abc import Mapping

from encamp.core.placement.room import HostRoom
from encamp.core.placement.verdicts import Verdict
from encamp.core.placement.view import View
from encamp.model.request import Request, Together
from encamp.model.size import Size

_ONLY_FULL = frozenset({Verdict.OPEN, Verdict.NO_CPUS, Verdict.NO_MEMORY, Verdict.NO_DISK})
"""Hosts that will do as soon as machines on them end."""


class Reservation:
    def __init__(self, request: Request, hosts: dict[str, int]) -> None:
        self.request = request
        self.hosts = hosts
        """How many of its machines each is to take."""

    def leaves(self, room: HostRoom, size: Size, count: int) -> bool:
        """May somebody else have so many machines of a size there?"""
        kept = self.hosts.get(room.name)
        if kept is None:
            return True
        own = self.request.size
        return (
            room.room_cpus - count * size.cpus >= kept * own.cpus
            and room.room_memory - count * size.memory >= kept * own.memory
            and (not own.disk or room.room_disk - count * size.disk >= kept * own.disk)
        )

    def holds(self, view: View) -> bool:
        """Would the hosts still do?"""
        return all(view.verdicts.get(name) in _ONLY_FULL for name in self.hosts)


def reserve(request: Request, view: View, rooms: Mapping[str, HostRoom]) -> Reservation | None:
    """Keep room where least has to end for it. Of a group as many hosts as it takes."""
    found = sorted(
        (_lacking(rooms[name], request, view), name)
        for name, verdict in view.verdicts.items()
        if verdict in _ONLY_FULL
    )
    wanted = request.count
    hosts: dict[str, int] = {}
    for _, name in found:
        most = rooms[name].times_if_empty(request.size)
        if request.together is Together.APART:
            most = min(most, 1)
        hosts[name] = min(most, wanted)
        wanted -= hosts[name]
        if wanted <= 0:
            return Reservation(request, {name: kept for name, kept in hosts.items() if kept})
    return None


def _lacking(room: HostRoom, request: Request, view: View) -> float:
    """What part of a host would have to become free."""
    size = view.shape.size
    cpus = max(size.cpus - room.room_cpus, 0) / (room.cpus or 1)
    memory = max(size.memory - room.room_memory, 0) / (room.memory or 1)
    return max(cpus, memory)
