"""What waits in batch systems, by environment: facts for expressions, made of a property that the
hosts tell which look at a queue."""

from __future__ import annotations

from typing import NamedTuple

from encamp.core.world import Known, Unknown, World

PROPERTY = "batch_waiting"
NOBODY_LOOKS = Unknown("no host looks at the queue of a batch system")
NONE_WAITS = Unknown("none waits")
NOT_TOLD = Unknown("the batch system does not tell")


class Line(NamedTuple):
    """What waits for one environment."""

    since: float
    """When the oldest job was submitted,"""
    owner: str
    """and whose it is."""
    jobs: int


Queue = dict[str, Line]
"""By environment."""


class BatchQueue:
    def __init__(self, world: World) -> None:
        self._world = world
        self._told: dict[str, Queue] = {}
        """By the host that looks."""

    def told(self, host: str, value: Known) -> None:
        """What a host says; not known: nothing any more."""
        before = self._told.get(host)
        if isinstance(value, Unknown):
            self._told.pop(host, None)
        else:
            self._told[host] = understood(value)
        if self._told.get(host) != before:
            self.tell_all()

    def gone(self, host: str) -> None:
        if self._told.pop(host, None) is not None:
            self.tell_all()

    def tell_all(self) -> None:
        for name in self._world.things["environment"]:
            self._world.put("environment", name, self._facts(name))

    def _facts(self, environment: str) -> dict[str, Known]:
        """Of several hosts that look, each sees a whole queue: the longest counts."""
        lines = [queue[environment] for queue in self._told.values() if environment in queue]
        if lines:
            oldest = min(lines)
            return {
                "batch_waiting": max(line.jobs for line in lines),
                "batch_waiting_since": oldest.since,
                "batch_waiting_owner": oldest.owner or NOT_TOLD,
            }
        nobody = NONE_WAITS if self._told else NOBODY_LOOKS
        return {
            "batch_waiting": 0 if self._told else NOBODY_LOOKS,
            "batch_waiting_since": nobody,
            "batch_waiting_owner": nobody,
        }


def understood(value: Known) -> Queue:
    """What makes sense of it; hosts may say anything."""
    found: Queue = {}
    for name, said in value.items() if isinstance(value, dict) else ():
        if not isinstance(said, dict):
            continue
        jobs, oldest, owner = said.get("jobs"), said.get("oldest"), said.get("owner")
        if type(jobs) is int and jobs > 0 and isinstance(oldest, int | float):
            found[name] = Line(float(oldest), owner if isinstance(owner, str) else "", jobs)
    return found
