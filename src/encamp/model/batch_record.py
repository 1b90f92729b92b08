"""What is written down of a batch job that came to a host: whose it is, where it runs, in which
machine, since when, and how it ended."""

from __future__ import annotations

import enum

import msgspec


class Outcome(enum.Enum):
    """How a job of a batch system stands, or went, on one host."""

    STARTING = "starting"
    """Its machine is being made."""
    RUNNING = "running"
    DONE = "done"
    """It ended by itself, with whatever exit code."""
    KILLED = "killed"
    """Its batch system, its user or a signal ended it."""
    FAILED = "failed"
    """It could not be run, and not be given back either."""
    GIVEN_BACK = "given back"
    """It is in its batch system's queue again."""
    HELD = "held"
    """The same, until somebody releases it."""
    PLAIN = "plain"
    """It meant no environment, and runs as it would without Encamp."""
    LOST = "lost"
    """What carried it out is gone, and nobody knows more."""


UNDER_WAY = frozenset({Outcome.STARTING, Outcome.RUNNING})
ENDED = frozenset({Outcome.DONE, Outcome.KILLED, Outcome.FAILED})
"""What is to stay as it is."""


class WayBack(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of a job that is to be in its batch system's queue again, and not there for good yet."""

    left: str
    """What is left to do for that, in the words of its batch system's adapter."""
    outcome: Outcome
    """What it will have come to,"""
    reason: str
    """and why."""


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run of a batch job on one host."""

    key: str
    """The record's own name; a job that was given back has several records."""
    system: str
    id: str
    """The job's, as its batch system calls it."""
    uid: int
    user: str
    environment: str
    host: str
    name: str = ""
    queue: str = ""
    account: str = ""
    restarts: int = 0
    """How often it had been begun before, anywhere;"""
    returns: int | None = None
    """and how often because it came back; None: that is not told apart."""
    step: str = ""
    """Of the job, where it has steps."""
    outcome: Outcome = Outcome.STARTING
    machine: str = ""
    """Its id, once there is one."""
    tries: int = 1
    """How often it was tried here."""
    came: float
    begun: float = 0.0
    """When it began to run in its machine; 0: it did not."""
    ended: float = 0.0
    exit_code: int | None = None
    signal: int | None = None
    """What ended it, if a signal did."""
    reason: str = ""
    """Why it was given back, held or failed; or why it is not running yet."""
    back: WayBack | None = None
    cpu_seconds: float | None = None
    """Of the machine's process; None: not known."""
    peak_memory: int | None = None
    """Bytes that the machine's process held at most; None: not known."""

    @property
    def full_id(self) -> str:
        return f"{self.system}:{self.id}"
