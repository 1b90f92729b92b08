"""A command: one thing an agent can be told to do; what is known of each that was issued."""

from __future__ import annotations

import enum

import msgspec

from encamp.model.property import Value, ValueKind

NAME = r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*"
"""Such as `machine.start`."""


LARGEST_OUTPUT = 16 << 20
"""Bytes that are kept of a command's output; that there was more is said at its end."""


LONGEST = 366 * 86400.0
"""Seconds: the longest time limit a command can be given."""


class Parameter(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    kind: ValueKind = ValueKind.STR
    required: bool = True
    default: Value = None
    help: str = ""


class CommandDefinition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an agent offers to do."""

    name: str
    parameters: tuple[Parameter, ...] = ()
    returns: ValueKind | None = None
    timeout: float = 600.0
    """Seconds it may take, unless whoever issues it says otherwise."""
    help: str = ""
    internal: bool = False
    """Managers issue it for ends of their own; nobody else can."""


class CommandState(enum.Enum):
    WAITING = "waiting"
    """Written down; its agent has not taken it yet."""
    RUNNING = "running"
    """Its agent has it: it will be carried out exactly once, whatever is restarted."""
    DONE = "done"
    FAILED = "failed"
    """It was carried out, and went wrong; the reason says how."""
    CANCELLED = "cancelled"
    TIMED_OUT = "timed out"
    REFUSED = "refused"
    """Its agent would not do it: unknown, wrong arguments, not permitted."""
    LOST = "lost"
    """It was begun and nobody knows how it ended: its process was killed, or its host is gone."""


IN_WORDS = {
    CommandState.WAITING: "is waiting",
    CommandState.RUNNING: "is running",
    CommandState.DONE: "is done",
    CommandState.FAILED: "failed",
    CommandState.CANCELLED: "was cancelled",
    CommandState.TIMED_OUT: "took too long",
    CommandState.REFUSED: "was refused",
    CommandState.LOST: "was lost",
}
"""How a state is told in a sentence, after the command's name."""

COMMAND_TRANSITIONS: dict[CommandState, frozenset[CommandState]] = {
    CommandState.WAITING: frozenset(
        {
            CommandState.RUNNING,
            CommandState.REFUSED,
            CommandState.CANCELLED,
            CommandState.TIMED_OUT,
            CommandState.LOST,
            # A short one: its agent reports the end first.
            CommandState.DONE,
            CommandState.FAILED,
        }
    ),
    CommandState.RUNNING: frozenset(
        {
            CommandState.DONE,
            CommandState.FAILED,
            CommandState.CANCELLED,
            CommandState.TIMED_OUT,
            CommandState.LOST,
        }
    ),
    # An agent that was thought gone may come back and tell how it ended.
    CommandState.LOST: frozenset(
        {
            CommandState.DONE,
            CommandState.FAILED,
            CommandState.CANCELLED,
            CommandState.TIMED_OUT,
        }
    ),
    CommandState.DONE: frozenset(),
    CommandState.FAILED: frozenset(),
    CommandState.CANCELLED: frozenset(),
    CommandState.TIMED_OUT: frozenset(),
    CommandState.REFUSED: frozenset(),
}
"""What may follow each state."""

OVER = frozenset(CommandState) - {CommandState.WAITING, CommandState.RUNNING}


class CommandRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One command to one host: who issued it, when, and what came back."""

    id: str
    host: str
    name: str
    arguments: dict[str, Value] = {}
    issuer: str
    """Who: `alice`, `root`, `trigger:NAME`."""
    issued: float
    timeout: float
    state: CommandState = CommandState.WAITING
    reason: str = ""
    """Why it is in that state: a sentence."""
    changed: float = 0.0
    """When it came into this state."""
    to_stop: bool = False
    """Somebody wants it to stop, and its agent may not have heard so yet."""
    started: float = 0.0
    ended: float = 0.0
    value: Value = None
    """What it returned."""
    exit_code: int | None = None
    """Of the program it ran, if it ran one."""
    output: int = 0
    """Bytes of output that have arrived."""
    phase: str = ""
    """How far it is with a machine, as its agent has told: `image`, `start`, `running`."""
    machine: str = ""
    """The id of that machine."""
