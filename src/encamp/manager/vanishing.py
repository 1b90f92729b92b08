"""Machines that were wanted for themselves: when they are gone, their request is over."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from encamp.core.happenings import Joined, PartMoved, Reported
from encamp.manager.parts import PartId
from encamp.model.machine import State
from encamp.model.request import PartState

ENDED = frozenset({State.STOPPED, State.FAILED})
"""States of which only a record is left."""


def vanished(
    told: Joined | Reported, before: Collection[str], standing: Mapping[str, PartId]
) -> list[PartMoved]:
    """What a host that tells of its machines means for the parts that stand on it, by the machines'
    ids. What it told of `before` and tells no more is gone; of one that it never told of it may
    not know yet, unless it has just come."""
    if told.machines is None:
        return []
    present = {machine.id: machine for machine in told.machines}
    moved = []
    for machine_id, part in standing.items():
        machine = present.get(machine_id)
        if machine is None:
            if machine_id in before or isinstance(told, Joined):
                moved.append(_over(part, machine_id, told.name, ""))
        elif machine.state in ENDED:
            failed = machine.state is State.FAILED
            failure = f"its machine has failed: {machine.reason}" if failed else ""
            moved.append(_over(part, machine_id, told.name, failure))
    return moved


def _over(part: PartId, machine: str, host: str, failure: str) -> PartMoved:
    return PartMoved(
        request=part.request,
        number=part.number,
        attempt=part.attempt,
        host=host,
        state=PartState.OVER,
        machine=machine,
        failure=failure,
        began=True,
    )
