"""Whether jobs may come to this host: the bait is closed towards the batch system when another
machine would not fit, or environments fail here, and opened again when that is over.

Whether it was us who closed it is the batch system's to tell, by our mark in its reason. So nothing
is lost with the agent, and what an administrator has closed stays closed.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from encamp.model.batch import Bait, BaitState, BatchSettings, Threshold
from encamp.model.size import MIB, format_bytes

STOPPED = "no agent takes jobs on this host"


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """What there is room for on this host."""

    memory: int
    """Bytes that nobody uses or was promised; machines that stand idle give way."""
    disk: int
    machines: int = 0
    """That run or were promised, those that stand idle not counted."""
    failing: tuple[str, ...] = ()
    """Environments for which the host is left alone, each with the reason in a few words."""


class Cause(enum.Enum):
    """Why the bait is closed, in a word."""

    MEMORY = "memory"
    DISK = "disk"
    MACHINES = "machines"
    FAILING = "failing"


class Closing(msgspec.Struct, frozen=True):
    """Close it, or say another reason for its being closed."""

    reason: str
    causes: frozenset[Cause]


class Opening(msgspec.Struct, frozen=True):
    """Open it again."""

    reason: str


class Nothing(msgspec.Struct, frozen=True):
    reason: str
    """Why nothing is done."""


Step = Closing | Opening | Nothing


def step(told: frozenset[Cause] | None, host: Host, bait: Bait, settings: BatchSettings) -> Step:
    """What to do. `told`: for what this agent has closed it; None: it has not."""
    if bait.state is BaitState.CLOSED:
        return Nothing("an administrator has closed it")
    if bait.state is BaitState.UNKNOWN:
        return Nothing(bait.reason or "the batch system does not tell how this host stands")
    open_now = bait.state is BaitState.OPEN
    least = settings.close if open_now else _wider(settings.close, settings.open)
    missing = lacks(host, least, settings)
    if not missing:
        whole = open_now and not bait.partly
        return Nothing("there is room") if whole else Opening("there is room again")
    reason, causes = "; ".join(missing.values()), frozenset(missing)
    if open_now:
        return Closing(reason, causes)
    # Figures change all the time; what lacks does not. What a former agent has said is said anew.
    return Nothing(reason) if causes == told else Closing(reason, causes)


def lacks(host: Host, least: Threshold, settings: BatchSettings) -> dict[Cause, str]:
    """What another machine would lack here, each in a few words."""
    missing: dict[Cause, str] = {}
    if host.failing:
        missing[Cause.FAILING] = "; ".join(host.failing[:3])
    if settings.machines is not None and host.machines >= settings.machines:
        missing[Cause.MACHINES] = f"{host.machines} of {settings.machines} machines are in use"
    for cause, free, wanted in (
        (Cause.MEMORY, host.memory, least.memory),
        (Cause.DISK, host.disk, least.disk),
    ):
        # What was promised may be more than there is; a threshold of 0 is none all the same.
        if max(0, free) < wanted:
            missing[cause] = f"{_size(free)} of {cause.value} free, {_size(wanted)} wanted"
    return missing


def _wider(one: Threshold, other: Threshold) -> Threshold:
    """What is enough to open must not be too little to stay open."""
    return Threshold(memory=max(one.memory, other.memory), disk=max(one.disk, other.disk))


def _size(amount: int) -> str:
    return format_bytes(max(0, amount) // MIB * MIB)


def described(failing: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    """Environments and how often each has failed, as a batch system can show it."""
    return tuple(f"environment {name} failed {count} times" for name, count in failing)
