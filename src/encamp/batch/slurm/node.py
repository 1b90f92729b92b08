"""How a Slurm node stands, and whether it is closed by Encamp or by somebody else.

What Encamp writes as a node's reason ends with a check of its own words. So a reason that an
administrator has changed, added to or replaced is his, and what he has closed stays closed.
"""

from __future__ import annotations

import hashlib
import re

from encamp.model.batch import Bait, BaitState
from encamp.model.errors import Code, EncampError

MARK = "encamp: "
LONGEST = 200
SILENT = "Not responding"
"""The reason of nodes that Slurm itself takes for lost, until they answer again."""

STATES = {
    "DOWN": BaitState.CLOSED,
    "DRAIN": BaitState.CLOSED,
    "ERROR": BaitState.CLOSED,
    "FAIL": BaitState.CLOSED,
    "FUTURE": BaitState.CLOSED,
    "MAINTENANCE": BaitState.CLOSED,
    "POWERED_DOWN": BaitState.CLOSED,
    "POWERING_DOWN": BaitState.CLOSED,
    "POWER_DOWN": BaitState.CLOSED,
    "REBOOT_ISSUED": BaitState.CLOSED,
    "REBOOT_REQUESTED": BaitState.CLOSED,
    "INVALID_REG": BaitState.CLOSED,
    "UNKNOWN": BaitState.UNKNOWN,
    "NOT_RESPONDING": BaitState.OPEN,
    "ALLOCATED": BaitState.OPEN,
    "CLOUD": BaitState.OPEN,
    "COMPLETING": BaitState.OPEN,
    "DYNAMIC_NORM": BaitState.OPEN,
    "IDLE": BaitState.OPEN,
    "MIXED": BaitState.OPEN,
    "PLANNED": BaitState.OPEN,
    "POWERING_UP": BaitState.OPEN,
    "RESERVED": BaitState.OPEN,
}
"""What each part of a node's state, as scontrol names it, is to us. A node whose state is not
here is left alone."""

STATE = re.compile(r" State=([A-Z_+]+)\S* ")
REASON = re.compile(r" Reason=(.*?) \[[^\s@\]]+@[^\s\]]+\](?:\s|$)", re.DOTALL)


def bait_of(said: str) -> Bait:
    """How the node stands that `scontrol show node -o` has described."""
    state = STATE.search(said)
    if state is None:
        raise EncampError(
            Code.PROTOCOL,
            "Slurm described this node in a way that Encamp does not understand.",
            detail=said[:2000],
        )
    found = REASON.search(said)
    reason = found[1] if found else ""
    parts = state[1].split("+")
    stands = {STATES.get(part, BaitState.CLOSED) for part in parts}
    if BaitState.CLOSED in stands:
        closed = {part for part in parts if STATES.get(part) is not BaitState.OPEN}
        if closed == {"DRAIN"} and is_ours(reason):
            return Bait(state=BaitState.FULL, reason=without_mark(reason))
        if closed == {"DOWN"} and reason.startswith(SILENT):
            return Bait(state=BaitState.UNKNOWN, reason="Slurm does not hear from this node")
        return Bait(state=BaitState.CLOSED, reason=reason or state[1])
    if BaitState.UNKNOWN in stands:
        return Bait(state=BaitState.UNKNOWN, reason="Slurm has not heard of this node yet")
    return Bait(state=BaitState.OPEN)


def with_mark(reason: str) -> str:
    """As it is written into a node's reason."""
    words = MARK + plain(reason)
    return f"{words} ({check(words)})"


def is_ours(reason: str) -> bool:
    match = re.fullmatch(rf"({re.escape(MARK)}.*) \((\w+)\)", reason, re.DOTALL)
    return match is not None and match[2] == check(match[1])


def without_mark(reason: str) -> str:
    return reason.removeprefix(MARK).rpartition(" (")[0]


def check(words: str) -> str:
    return hashlib.sha256(words.encode()).hexdigest()[:6]


def plain(text: str) -> str:
    """On one line, and without what scontrol or a reader could take for something else."""
    line = " ".join(text.split()).replace('"', "'").replace("[", "(").replace("]", ")")
    return "".join(c if " " <= c <= "~" else "?" for c in line)[:LONGEST].strip()
