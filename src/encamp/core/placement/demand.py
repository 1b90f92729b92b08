"""What is wanted of each environment, and what there is of it: facts for expressions."""

from __future__ import annotations

from collections import Counter

from encamp.core.placement.ordered import Ordered
from encamp.core.placement.room import HostRoom
from encamp.core.world import MISSING, Known, World
from encamp.model.machine import State
from encamp.model.request import Request, RequestRecord, RequestState

COMING = frozenset(
    {
        RequestState.WAITING,
        RequestState.CLAIMING,
        RequestState.STARTING,
        RequestState.RUNNING,
    }
)


class Demand:
    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: dict[str, Ordered[tuple[float, str]]] = {}
        self._there: dict[str, dict[str, tuple[int, int]]] = {}
        """By host and environment: machines that run, and those of them that nobody uses."""
        self._coming: Counter[str] = Counter()
        self._coming_by: dict[str, int] = {}
        """By request: machines that are wanted for themselves and are not up yet."""
        self._running: dict[str, int] = {}
        self._idle: dict[str, int] = {}

    def waits(self, request: Request) -> None:
        line = self._waiting.setdefault(request.environment, Ordered())
        line.add((request.submitted, request.id))
        self._tell(request.environment)

    def waits_no_more(self, request: Request) -> None:
        line = self._waiting[request.environment]
        line.remove((request.submitted, request.id))
        if not line:
            del self._waiting[request.environment]
        self._tell(request.environment)

    def comes(self, record: RequestRecord) -> None:
        """A request is that far."""
        request = record.request
        if request.job is not None:
            return
        # One that stands ready for jobs to come is over as soon as its host has told of it.
        made = record.state is RequestState.RUNNING and not request.reuse
        coming = request.count if record.state in COMING and not made else 0
        before = self._coming_by.pop(request.id, 0)
        if coming:
            self._coming_by[request.id] = coming
        if coming != before:
            self._coming[request.environment] += coming - before
            self._tell(request.environment)

    def stand(self, room: HostRoom) -> None:
        """Other machines are on a host, or other requests use them."""
        used = {promise.machine for promise in room.promises.values()}
        found: dict[str, tuple[int, int]] = {}
        for machine, _ in room.standing.values():
            if machine.state is State.RUNNING:
                running, idle = found.get(machine.environment, (0, 0))
                found[machine.environment] = (running + 1, idle + (machine.id not in used))
        for machine in room.idle:
            running, idle = found.get(machine.environment, (0, 0))
            found[machine.environment] = (running + 1, idle + 1)
        before = self._there.pop(room.name, {})
        if found:
            self._there[room.name] = found
        if before == found:
            return
        for environment in before.keys() | found.keys():
            old, new = before.get(environment, (0, 0)), found.get(environment, (0, 0))
            self._running[environment] = self._running.get(environment, 0) + new[0] - old[0]
            self._idle[environment] = self._idle.get(environment, 0) + new[1] - old[1]
            self._tell(environment)

    def tell_all(self) -> None:
        for environment in self._world.things["environment"]:
            self._tell(environment)

    def classes(self, environment: str) -> tuple[str, ...]:
        thing = self._world.things["environment"].get(environment)
        found = thing.facts.get("classes") if thing is not None else None
        return tuple(str(name) for name in found) if isinstance(found, list) else ()

    def _tell(self, environment: str) -> None:
        if environment not in self._world.things["environment"]:
            return
        line = self._waiting.get(environment)
        first = line.first() if line else None
        since: Known = first[0] if first else MISSING
        self._world.put(
            "environment",
            environment,
            {
                "waiting": len(line) if line else 0,
                "waiting_since": since,
                "coming": self._coming[environment],
                "running": self._running.get(environment, 0),
                "idle": self._idle.get(environment, 0),
            },
        )
