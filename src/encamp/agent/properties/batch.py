"""The batch system beside which this host works: how the bait stands, what runs, what waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from encamp.agent.properties.plugin import Asked, NoValueError, one_of
from encamp.model.property import Value

if TYPE_CHECKING:
    from encamp.model.batch import BatchSettings

SYSTEM, ENROLLING = "system", "enrolling"


def batch(asked: Asked) -> Value:
    """`bait`, its `reason`, the number of `jobs` that are here, the environments whose machines may
    become worker `nodes`, or those jobs that are `waiting` in the queue. Only the last asks the
    batch system."""
    reads = {"bait": _bait, "reason": _reason, "jobs": _jobs, "nodes": _nodes, "waiting": _waiting}
    value: Value = one_of(asked, reads)(asked)
    return value


def _bait(asked: Asked) -> str:
    from encamp.agent.bait.watching import read_told
    from encamp.model.batch import BaitState

    told = read_told(asked.home)
    return (told.state if told is not None else BaitState.UNKNOWN).value


def _reason(asked: Asked) -> str:
    from encamp.agent.bait.watching import read_told

    told = read_told(asked.home)
    return told.reason if told is not None else "nobody has looked yet"


def _jobs(asked: Asked) -> int:
    from encamp.agent.bait.records import count_running

    return count_running(asked.home)


def _nodes(asked: Asked) -> Value:
    from encamp.agent.nodes.offering import can_enrol
    from encamp.describe import places
    from encamp.describe.environments import environments_that_enrol

    settings = _settings()
    mark = (settings.system, [one.stamp for one in places.look(places.environment_places())])
    kept = asked.kept.get(ENROLLING)
    if kept is None or kept[0] != mark:
        names = sorted(one.name for one in environments_that_enrol(settings.system))
        kept = asked.kept[ENROLLING] = (mark, names)
    return list[Value](can_enrol(asked.home, settings, kept[1]))


def _settings() -> BatchSettings:
    from encamp.describe.batch_file import load_batch_settings

    settings = load_batch_settings()
    if settings is None:
        raise NoValueError("This host has no batch.yaml.")
    return settings


def _waiting(asked: Asked) -> Value:
    from encamp.batch.adapters import open_batch_system

    settings = _settings()
    kept = asked.kept.get(SYSTEM)
    if kept is None or kept[0] != settings:
        kept = asked.kept[SYSTEM] = (settings, open_batch_system(settings))
    return {
        one.environment: {
            "jobs": one.jobs,
            "cpus": one.cpus,
            "oldest": one.oldest,
            "owner": one.owner,
        }
        for one in kept[1].waiting()
        if one.environment
    }
