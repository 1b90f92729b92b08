"""What the core decides is to be done. The daemon around it does it."""

from __future__ import annotations

import enum

import msgspec

from encamp.model.property import Value
from encamp.model.request import RequestRecord


class IssueCommand(msgspec.Struct, frozen=True, tag=True):
    """Tell hosts to do something; one record each."""

    hosts: tuple[str, ...]
    name: str
    arguments: dict[str, Value]
    issuer: str
    """`trigger:NAME`."""
    timeout: float | None = None


class AskProperties(msgspec.Struct, frozen=True, tag=True):
    """Query properties (none: all) of hosts (None: all of them)."""

    hosts: tuple[str, ...] | None
    properties: tuple[str, ...] = ()


class Way(enum.Enum):
    LOG = "log"
    WEBHOOK = "webhook"
    MAIL = "mail"


class Notify(msgspec.Struct, frozen=True, tag=True):
    way: Way
    text: str
    trigger: str
    to: str = ""
    """A URL, or an address."""
    facts: dict[str, Value] = {}
    owner: str | None = None
    """Whose business the text is, as that of a `Judged`."""


class PlaceMachines(msgspec.Struct, frozen=True, tag=True):
    """Have machines made ready for jobs to come, wherever there is room: a request each."""

    environment: str
    count: int
    owner: str
    """Whose jobs they are for; empty: the manager's own user."""
    trigger: str
    batch: bool = False
    """Are they for jobs of the batch system's?"""


Step = IssueCommand | AskProperties | Notify | PlaceMachines


class InOrder(msgspec.Struct, frozen=True):
    """Several things, one after the other: what is next begins when the former is over. After one
    that failed on any host the rest is not done, unless errors are to be ignored."""

    trigger: str
    steps: tuple[tuple[Step, ...], ...]
    """What stands together in a step is done at the same time."""
    subject: str = ""
    ignore_errors: bool = False


class Judgement(enum.Enum):
    """What became of one look at a trigger."""

    FIRED = "fired"
    FALSE = "false"
    UNKNOWN = "unknown"
    """Something it needs to know is not known."""
    HOLDING = "holding"
    """True, but not for long enough yet."""
    COOLING = "cooling"
    """True, but it fired too recently."""
    ONCE = "once"
    """True, but it has fired already, and not been false since."""
    STOPPED = "stopped"
    """It fired on its own effect without end."""
    FAILED = "failed"
    """Its command could not be worked out."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a trigger's log: why it fired or did not, with the values it saw. Repetitions of
    the same are not told again."""

    trigger: str
    at: float
    judgement: Judgement
    subject: str = ""
    """The key of the host, machine ... it was judged for; empty if it is about none."""
    reason: str = ""
    seen: dict[str, Value] = {}
    """`host.load1` and what it was."""
    actions: tuple[str, ...] = ()
    """What was done, in words."""
    owner: str | None = None
    """Whose business it is, beside the administrators': that of the owner of what was seen; empty:
    everybody's, since nobody owns it; None: nobody else's."""


Action = IssueCommand | AskProperties | Notify | PlaceMachines | InOrder | Judged


# ── about requests ───────────────────────────────────────────────────────────────────────────────


class WriteRequest(msgspec.Struct, frozen=True):
    """Write down how far a request has come, before anything that follows is done."""

    record: RequestRecord


class ClaimRoom(msgspec.Struct, frozen=True, kw_only=True):
    """Ask a host to promise a machine. `ClaimAnswered` follows."""

    request: str
    number: int
    attempt: int
    host: str


class ReleaseRoom(msgspec.Struct, frozen=True, kw_only=True):
    """A promise is not needed any more; nothing of it has begun."""

    request: str
    number: int
    attempt: int
    host: str


class BeginPart(msgspec.Struct, frozen=True, kw_only=True):
    """Have the machine made that was promised, and its command run. Once, whatever is restarted;
    `PartMoved` follows."""

    request: str
    number: int
    attempt: int
    host: str


class EndPart(msgspec.Struct, frozen=True, kw_only=True):
    """Have a machine that was begun ended, however far it is. `PartMoved` follows."""

    request: str
    number: int
    attempt: int
    host: str


PlacementAction = WriteRequest | ClaimRoom | ReleaseRoom | BeginPart | EndPart
