"""The batch system beside which this host works: how the bait stands, what runs, what waits."""

from __future__ import annotations

from encamp.agent.properties.plugin import Asked, NoValueError, one_of
from encamp.model.property import Value

SYSTEM = "system"


def batch(asked: Asked) -> Value:
    """`bait`, its `reason`, the number of `jobs` that are here, or those that are `waiting` in the
    queue. Only the last asks the batch system."""
    read = one_of(asked, {"bait": _bait, "reason": _reason, "jobs": _jobs, "waiting": _waiting})
    value: Value = read(asked)
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


def _waiting(asked: Asked) -> Value:
    from encamp.batch.adapters import open_batch_system
    from encamp.describe.batch_file import load_batch_settings

    settings = load_batch_settings()
    if settings is None:
        raise NoValueError("This host has no batch.yaml.")
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
