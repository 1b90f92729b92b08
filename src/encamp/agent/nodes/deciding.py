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
    END = "end"
    """The batch system was never told of it: end the machine without a word."""


class Decision(msgspec.Struct, frozen=True):
    step: Step
    node: Node
    """As it is to be written down before the step is taken."""


def decide(node: Node, seen: Seen | None, *, alive: bool, joining: bool, now: float) -> Decision:
    """What is to be done with a node. `seen`: None if its batch system does not know it. `alive`:
    does its machine run? `joining`: is somebody at work on having it join?"""
    if not node.is_told:
        # One of its name that the batch system sees is another host's.
        return Decision(Step.STAY if alive and joining else Step.END, node)
    if not alive:
        return Decision(Step.LOST, node)
    if node.state is NodeState.JOINING and joining:
        return Decision(Step.STAY, node)
    unseen = None if seen is not None else now if node.unseen is None else node.unseen
    node = msgspec.structs.replace(node, unseen=unseen)
    if node.state is NodeState.JOINING:
        return _leave(node, seen, "whoever had it join was ended on the way", now)
    if node.state is NodeState.LEAVING:
        return _leaving(node, seen, now)
    if node.until is not None and now >= node.until:
        return _leave(node, seen, node.reason or "its lease has ended", now)
    if seen is None:
        if _is_forgotten(node, now):
            return _leave(node, seen, "its batch system has forgotten it", now)
        return Decision(Step.STAY, msgspec.structs.replace(node, open=True))
    if seen.ended:
        return _leave(node, seen, "its batch system takes it for ended", now)
    node = msgspec.structs.replace(node, open=seen.up and not seen.closed)
    if seen.jobs:
        return Decision(Step.STAY, msgspec.structs.replace(node, quiet=None))
    since = node.quiet if node.quiet is not None else now
    if seen.busy is not None:
        # Jobs may come and go between two looks.
        since = max(since, seen.busy)
    if now - since >= node.idle:
        return _leave(node, seen, "it has had no job for long", now)
    return Decision(Step.STAY, msgspec.structs.replace(node, quiet=since))


def _leave(node: Node, seen: Seen | None, reason: str, now: float) -> Decision:
    return _leaving(node.moved(NodeState.LEAVING, now, reason), seen, now)


def _leaving(node: Node, seen: Seen | None, now: float) -> Decision:
    """That no job is there says nothing as long as one may be sent."""
    if seen is None:
        return Decision(Step.REMOVE if _is_forgotten(node, now) else Step.STAY, node)
    if not seen.closed:
        return Decision(Step.CLOSE, node)
    return Decision(Step.STAY if seen.jobs else Step.REMOVE, node)


def _is_forgotten(node: Node, now: float) -> bool:
    return node.unseen is not None and now - node.unseen >= UNKNOWN_FOR
