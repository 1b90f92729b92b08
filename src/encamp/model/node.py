"""Worker nodes: machines that join a batch system, are filled by its own scheduler, and leave."""

from __future__ import annotations

import enum

import msgspec

IDLE = 300.0


class Enrolment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """That machines of an environment become worker nodes, and how they end."""

    system: str
    features: tuple[str, ...] = ()
    """What jobs may ask of such a node, beside the environment's name."""
    idle: float = IDLE
    """Seconds without a job after which it leaves."""
    lease: float | None = None
    """Seconds after which it takes no more jobs, and leaves when the last has ended."""


class NodeState(enum.Enum):
    JOINING = "joining"
    """Not known to take jobs yet."""
    MEMBER = "member"
    """The batch system sends it jobs."""
    LEAVING = "leaving"
    """No more jobs are sent; those that run are waited for."""


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a machine stands towards the batch system that it is a worker node of."""

    system: str
    name: str
    """What the batch system calls it: its host name."""
    state: NodeState
    since: float
    """When it came into this state."""
    told: bool = False
    """Was the batch system told of it? Before that, one that it has of that name is another's."""
    idle: float = IDLE
    until: float | None = None
    """The end of its lease."""
    quiet: float | None = None
    """Since when it has had no job."""
    unseen: float | None = None
    """Since when the batch system has not known it."""
    open: bool = True
    """Would the batch system send it one? It does not if it has lost sight of the node, or if an
    administrator has closed it."""
    reason: str = ""
    """Why it leaves."""

    @property
    def is_told(self) -> bool:
        """A record of an older version does not say so; but only one that was told of joins."""
        return self.told or self.state is not NodeState.JOINING

    def moved(self, state: NodeState, now: float, reason: str = "") -> Node:
        return msgspec.structs.replace(
            self, state=state, since=now, quiet=None, open=True, reason=reason
        )
