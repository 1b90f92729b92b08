"""An entry of the audit log: who wanted to change what, through which door, and what came of it."""

from __future__ import annotations

import enum

import msgspec


class AuditOutcome(enum.Enum):
    BEGUN = "begun"
    """It is under way; or the manager was killed in the middle of it."""
    DONE = "done"
    REFUSED = "refused"
    """Whoever asked may not."""
    FAILED = "failed"
    LEFT = "left"
    """Whoever asked went away before the answer was told."""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    number: int = 0
    """Counts up on each site."""
    at: float
    who: str
    """The user; with a token, its owner."""
    through: str
    """`door`, or `http`."""
    address: str = ""
    """Where a caller over HTTP is."""
    token: str = ""
    """The id of the token that was shown."""
    action: str
    """Such as `command.issue`."""
    about: str = ""
    """What it was to be done to, in words; never what could be a secret."""
    outcome: AuditOutcome = AuditOutcome.BEGUN
    sentence: str = ""
    """Why it was refused or failed."""
    made: tuple[str, ...] = ()
    """Ids of what came of it."""
