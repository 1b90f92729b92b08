"""What can happen to a site: what the manager's daemon tells the core."""

from __future__ import annotations

import msgspec

from encamp.model.command import CommandDefinition, CommandRecord
from encamp.model.errors import Code
from encamp.model.host import Presence
from encamp.model.machine import Machine
from encamp.model.policy import Policy
from encamp.model.property import PropertyDefinition, Reading, Value
from encamp.model.request import Cause, PartState, Request, RequestRecord


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """An agent has introduced itself, and said all it knows."""

    name: str
    instance: str
    version: str
    clock_offset: float
    groups: tuple[str, ...] = ()
    properties: tuple[PropertyDefinition, ...] = ()
    commands: tuple[CommandDefinition, ...] = ()
    readings: dict[str, Reading] = {}
    machines: tuple[Machine, ...] = ()
    troubles: tuple[str, ...] = ()
    owners: tuple[str, ...] | None = None
    """The users it can make machines for; None: all that have an account there."""
    claims: tuple[str, ...] = ()
    """What it has promised and not begun (`claim_id`)."""


class Gone(msgspec.Struct, frozen=True):
    """An agent has left, or was lost."""

    name: str
    presence: Presence
    reason: str


class Forgotten(msgspec.Struct, frozen=True):
    """A host is no longer part of the site."""

    name: str


class Reported(msgspec.Struct, frozen=True):
    """An agent tells what has changed."""

    name: str
    readings: dict[str, Reading]
    machines: tuple[Machine, ...] | None = None


class CommandMoved(msgspec.Struct, frozen=True):
    """A command was issued, or has got on."""

    record: CommandRecord


class EnvironmentsRead(msgspec.Struct, frozen=True):
    """The environments that there are, by name, with their facts."""

    environments: dict[str, dict[str, Value]]


class StoodStill(msgspec.Struct, frozen=True):
    """Nothing is started until an administrator says so, and time has passed."""


class TimePassed(msgspec.Struct, frozen=True):
    """Nothing happened but time."""


class PolicyRead(msgspec.Struct, frozen=True):
    """How the site is shared from now on."""

    policy: Policy


class Submitted(msgspec.Struct, frozen=True):
    """Somebody wants machines. The request was checked (`Core.check_request`)."""

    request: Request


class Remembered(msgspec.Struct, frozen=True):
    """A former manager wrote this down. Comes before any host joins."""

    record: RequestRecord


class EndWanted(msgspec.Struct, frozen=True):
    """Somebody wants a request to end."""

    request: str
    by: str


class ClaimAnswered(msgspec.Struct, frozen=True, kw_only=True):
    """A host has answered whether it will make a machine; or could not be asked."""

    request: str
    number: int
    attempt: int
    refusal: str = ""
    """Why not: a sentence. Empty: it will."""
    cause: Cause = Cause.NONE
    """Of the refusal: NO_ROOM, ENVIRONMENT, ABSENT ..."""


class PartMoved(msgspec.Struct, frozen=True, kw_only=True):
    """A machine of a request has got on, or is over."""

    request: str
    number: int
    attempt: int
    state: PartState
    """STARTING, RUNNING or OVER."""
    machine: str = ""
    exit_code: int | None = None
    """It has run, and ended so."""
    failure: str = ""
    """OVER without an exit code: why."""
    problem: str = ""
    """OVER with an exit code: what else is to be said of it."""
    cause: Cause = Cause.NONE
    """What STARTING waits for: IMAGE, START. OVER with IMAGE: its image could not be had there."""
    began: bool = False
    """Whether its command had begun. If not, it may be tried elsewhere."""
    blames_environment: bool = False
    """It failed in a way that makes it likely to fail here again."""
    lost: bool = False
    """It was cut short from outside: its host was restarted, or its process killed."""
    unknown: bool = False
    """Nobody can tell how it ended."""
    final: bool = False
    """It would fail everywhere: it is not tried again."""
    code: Code | None = None
    """What is wrong, in a word,"""
    hint: str = ""
    """and what to do about it."""
    host: str = ""
    """Where; so that what goes on there though it was given up can be ended."""


Happening = (
    Joined
    | Gone
    | Forgotten
    | Reported
    | CommandMoved
    | EnvironmentsRead
    | TimePassed
    | StoodStill
    | PolicyRead
    | Submitted
    | Remembered
    | EndWanted
    | ClaimAnswered
    | PartMoved
)
