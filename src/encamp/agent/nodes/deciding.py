"""When a worker node leaves its batch system, and how far it has got: decided here, done elsewhere.

A node never leaves under a running job. First no more jobs are sent to it; only when the batch
system, asked after that, says that none is left, it is removed there; and only then its machine
ends.
"""

from __future__ import annotations

import enum

import msgspec

from encamp.batch.enrol.workers import Seen
from encamp.model.node import Node, NodeState

UNKNOWN_FOR = 60.0
"""Seconds for which a batch system may have forgotten a node of its own, as when it was started
anew, before that counts as its will."""


class Step(enum.Enum):
    STAY = "stay"
    CLOSE = "close"
    """Have no more jobs sent, for the reason in the record."""
    REMOVE = "remove"
    """It is empty: have it forgotten, and end the machine."""
    LOST = "lost"
    """Its machine is gone: give its jobs back, and have it forgotten."""


class Decision(msgspec.Struct, frozen=True):
    step: Step
    node: Node
    """As it is to be written down before the step is taken."""


def decide(node: Node, seen: Seen | None, *, alive: bool, joining: bool, now: float) -> Decision:
    """What is to be done with a node. `seen`: None if its batch system does not know it. `alive`:
    does its machine run? `joining`: is somebody at work on having it join?"""
    if not alive:
        return Decision(Step.LOST, node)
    if node.state is NodeState.JOINING:
        if joining:
            return Decision(Step.STAY, node)
        return _leave(node, seen, "whoever had it join was ended on the way", now)
    if node.state is NodeState.LEAVING:
        if seen is None or seen.jobs == 0:
            return Decision(Step.REMOVE, node)
        return Decision(Step.STAY if seen.closed else Step.CLOSE, node)
    if node.until is not None and now >= node.until:
        return _leave(node, seen, node.reason or "its lease has ended", now)
    node = msgspec.structs.replace(node, open=seen is None or (seen.up and not seen.closed))
    if seen is not None and seen.jobs:
        return Decision(Step.STAY, msgspec.structs.replace(node, quiet=None))
    since = node.quiet if node.quiet is not None else now
    if seen is not None and seen.busy is not None:
        # Jobs may come and go between two looks.
        since = max(since, seen.busy)
    if now - since >= (UNKNOWN_FOR if seen is None else node.idle):
        why = "its batch system has forgotten it" if seen is None else "it has had no job for long"
        return _leave(node, seen, why, now)
    return Decision(Step.STAY, msgspec.structs.replace(node, quiet=since))


def _leave(node: Node, seen: Seen | None, reason: str, now: float) -> Decision:
    return Decision(
        Step.REMOVE if seen is None else Step.CLOSE,
        node.moved(NodeState.LEAVING, now, reason),
    )
