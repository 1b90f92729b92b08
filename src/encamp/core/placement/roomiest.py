"""The most that is free on any one host: who needs more need not look for a place."""

from __future__ import annotations

from encamp.core.placement.ordered import Ordered
from encamp.core.placement.room import HostRoom
from encamp.model.size import Size


class Roomiest:
    def __init__(self) -> None:
        self._cpus: Ordered[tuple[float, str]] = Ordered()
        self._memory: Ordered[tuple[float, str]] = Ordered()
        self._known: dict[str, tuple[float, int]] = {}

    def see(self, room: HostRoom) -> None:
        """What a host has left may be another."""
        name = room.name
        before = self._known.get(name)
        after = (room.room_cpus, room.room_memory) if room.joined else None
        if before == after:
            return
        if before is not None:
            self._cpus.remove((before[0], name))
            self._memory.remove((before[1], name))
            del self._known[name]
        if after is not None:
            self._cpus.add((after[0], name))
            self._memory.add((after[1], name))
            self._known[name] = after

    def may_have(self, size: Size) -> bool:
        """Not if it is false: then no host has so much."""
        cpus, memory = self._cpus.last(), self._memory.last()
        return (
            cpus is not None
            and memory is not None
            and cpus[0] >= size.cpus
            and memory[0] >= size.memory
        )
