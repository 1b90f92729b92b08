"""A request: machines that somebody wants, for a job or to keep, wherever there is room for them.

It waits in the manager's queue until hosts have promised to make all of its machines.
"""

from __future__ import annotations

import enum

import msgspec

from encamp.model.environment import Environment
from encamp.model.errors import Code
from encamp.model.job import Job, MachineRequest
from encamp.model.machine import PhaseTime
from encamp.model.size import Size

MOST_MACHINES = 10_000
"""Machines of one request."""

OWN = "own"
"""The class of all environments that a request's owner has described, whatever they say."""


class Together(enum.Enum):
    """How the machines of one request are spread over hosts."""

    ANYWHERE = "anywhere"
    ONE_HOST = "one host"
    APART = "apart"
    """No two of them on one host."""


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What was asked for. It never changes."""

    id: str
    owner: str
    """The name of the user it belongs to."""
    groups: tuple[str, ...] = ()
    """Groups of users that the owner was in when asking."""
    submitted: float
    environment: str
    classes: tuple[str, ...] = ()
    """Of the environment."""
    size: Size
    """Of each machine."""
    count: int = 1
    """Machines: all of them are made, or none."""
    together: Together = Together.ANYWHERE
    label: str = ""
    """What other requests of the same owner call it by."""
    near: tuple[str, ...] = ()
    """Labels: only hosts that have a machine of each of these."""
    away: tuple[str, ...] = ()
    """Labels: no host that has a machine of any of these."""
    requirements: str = ""
    """An expression about a host that must be true of it."""
    rank: str = ""
    """A rank's name or a numeric expression about a host: the higher, the better."""
    priority: int = 0
    """Among requests of the same owner: the higher, the earlier."""
    retries: int = 0
    """How often it may be begun anew after its host was lost or restarted under it, or the process
    that carries it out was killed."""
    wait_at_most: float | None = None
    """Seconds after which it is withdrawn if it is in the queue still; None: it waits for ever."""
    job: Job | None = None
    """What to run in each machine; None: the machines are wanted for themselves."""
    machine: MachineRequest
    """What each machine is to be; as in the job, if there is one."""
    detached: bool = False
    """Nobody waits for it: its output is kept until it is fetched."""
    reuse: bool = False
    """May it run in a machine that an earlier job of its owner and environment has left?"""
    described: Environment | None = None
    """The environment as the manager has read it, for hosts whose own files do not describe it;
    None: every host has it, for Encamp ships it."""
    own: bool = False
    """The owner described the environment, and not the site."""


class RequestState(enum.Enum):
    WAITING = "waiting"
    """In the queue."""
    CLAIMING = "claiming"
    """Hosts were chosen, and are asked whether they will."""
    STARTING = "starting"
    """They have promised to, and are making the machines."""
    RUNNING = "running"
    """All machines are there, and their commands have begun."""
    DONE = "done"
    """It has ended by itself, whatever the exit code; or its machines were removed."""
    FAILED = "failed"
    """It could not be run, or not to its end; the reason says why."""
    CANCELLED = "cancelled"
    LOST = "lost"
    """It had begun, and nobody knows how it ended: its host is gone."""


REQUEST_TRANSITIONS: dict[RequestState, frozenset[RequestState]] = {
    RequestState.WAITING: frozenset(
        {RequestState.CLAIMING, RequestState.FAILED, RequestState.CANCELLED}
    ),
    RequestState.CLAIMING: frozenset(
        {
            RequestState.WAITING,
            RequestState.STARTING,
            RequestState.FAILED,
            RequestState.CANCELLED,
        }
    ),
    # Back to the queue only as long as no command of it can have begun.
    RequestState.STARTING: frozenset(set(RequestState) - {RequestState.CLAIMING}),
    RequestState.RUNNING: frozenset(
        {
            RequestState.WAITING,
            RequestState.DONE,
            RequestState.FAILED,
            RequestState.CANCELLED,
            RequestState.LOST,
        }
    ),
    # A host that was thought gone may come back and tell how it ended.
    RequestState.LOST: frozenset({RequestState.DONE, RequestState.FAILED, RequestState.CANCELLED}),
    RequestState.DONE: frozenset(),
    RequestState.FAILED: frozenset(),
    RequestState.CANCELLED: frozenset(),
}
"""What may follow each state."""

REQUEST_OVER = frozenset(
    {RequestState.DONE, RequestState.FAILED, RequestState.CANCELLED, RequestState.LOST}
)

PLACED = frozenset({RequestState.CLAIMING, RequestState.STARTING, RequestState.RUNNING})
"""States in which hosts have room taken by it."""

UNDER_WAY = frozenset({RequestState.STARTING, RequestState.RUNNING})
"""States in which a command of it may have begun."""


class Cause(enum.Enum):
    """Why something is not (yet) as somebody wants it: one word, for programs."""

    BEHIND = "behind others"
    """Others in the queue come first."""
    NO_HOSTS = "no hosts"
    """No host has joined."""
    NO_HOST_FITS = "no host fits"
    """None of the hosts that are there could take it even if it were empty."""
    NO_ROOM = "no room"
    """Hosts that could take it are full."""
    LIMIT = "limit"
    """A limit of the site's policy caps it."""
    LEFT_ALONE = "left alone"
    """The environment keeps failing where there would be room; those hosts are spared a while."""
    REQUIREMENTS = "requirements"
    """The host does not meet the requirements, or what they ask is not known of it."""
    ENVIRONMENT = "environment"
    """The host cannot make machines of the environment, or not for this owner."""
    NEIGHBOURS = "neighbours"
    """Machines that it must be near to, or away from."""
    ABSENT = "absent"
    """The host has left, or is lost."""
    CLAIM = "claim"
    """A host is being asked."""
    IMAGE = "image"
    """An image is still being copied or built."""
    START = "start"
    """Its machine is being made."""
    RETRY = "retry"
    """An attempt has failed; another will be made."""
    NOT_BEGUN = "not begun"
    """It has waited for as long as it was to, and was withdrawn."""
    HOST_LOST = "host lost"
    """Its host is not heard of; it is waited for."""
    NONE = ""
    """Nothing is in its way."""


NOT_YET = "no host has been chosen for it yet"
"""The sentence of what has not been looked at: there is no other reason so far."""


class Reason(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Why something is as it is, and what happens next. Part of its record."""

    cause: Cause = Cause.NONE
    sentence: str = ""
    """For a person: `no host has 4 GiB free: 12 hosts are full`."""
    since: float = 0.0
    """Since when that has been the reason."""
    next: str = ""
    """What will happen, and what could be done: a sentence, or nothing."""
    limit: str = ""
    """The name of the limit that caps it."""


class PartState(enum.Enum):
    CLAIMING = "claiming"
    CLAIMED = "claimed"
    STARTING = "starting"
    RUNNING = "running"
    OVER = "over"


class Part(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One machine of a request that has a host."""

    number: int
    """Counts from zero."""
    host: str
    state: PartState = PartState.CLAIMING
    machine: str = ""
    """The machine's id, once it is known."""
    exit_code: int | None = None
    failure: str = ""
    """Why it is over, if that is not because its command has ended."""
    problem: str = ""
    """What its host says beyond the exit code, such as that its memory ran out: sentences."""
    began: bool = False
    """Whether its command has begun, as far as is known."""
    lost: bool = False
    """It was given up since its host did not come back; how it ended is not known."""


class PartResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one machine of a request, as its host tells it: what the command that made it
    returns, whether all went well or not."""

    machine: str = ""
    """The machine's id, if it came to that."""
    exit_code: int | None = None
    """Of its command; None: that did not come to an end of its own."""
    reason: str = ""
    """How its command ended: `exit code 3`."""
    began: bool = False
    """Whether its command has begun, or may have."""
    standing: bool = False
    """The machine stays until somebody ends it; it was wanted for itself."""
    failure: str = ""
    """Why it is over before its command has ended: a sentence."""
    code: Code | None = None
    """The same in a word."""
    hint: str = ""
    image: bool = False
    """Its image is not on this host, and could not be had."""
    environment: bool = False
    """Machines of the environment fail on this host; on others they may not."""
    final: bool = False
    """It would fail everywhere: the request itself is at fault."""
    transient: bool = False
    """Trying again here may help."""
    phases: tuple[PhaseTime, ...] = ()
    missing: tuple[str, ...] = ()
    """Patterns of files that matched nothing."""
    problems: tuple[str, ...] = ()
    saved: str = ""
    """The digest of the image that its machine was saved as."""


class Forsaken(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A machine of an attempt that was given up, since its host was lost. If that comes back with
    it, nobody wants it any more."""

    number: int
    attempt: int
    host: str
    machine: str


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request, and how far it has come: what is written down."""

    request: Request
    state: RequestState = RequestState.WAITING
    reason: Reason = Reason()
    changed: float = 0.0
    """When it came into this state."""
    attempt: int = 0
    """How often hosts were chosen for it. What was meant for an earlier attempt does not count."""
    lost: int = 0
    """How often it was lost under way and begun anew."""
    failures: int = 0
    """How often its machines could not be made."""
    parts: tuple[Part, ...] = ()
    started: float = 0.0
    """When the first of its commands began."""
    ended: float = 0.0
    exit_code: int | None = None
    """The highest of its commands'."""
    code: Code | None = None
    """What is wrong with a request that has failed, as an exit code of Encamp's own."""
    to_stop: bool = False
    """Somebody wants it to end, and its hosts may not have heard so yet."""
    forsaken: tuple[Forsaken, ...] = ()
    """Only machines that were wanted for themselves: of jobs, hosts tell what becomes."""


def claim_id(request: str, number: int, attempt: int) -> str:
    """What a host knows one machine of one attempt by: its claim, and the command that uses it."""
    return f"{request}.{number}.{attempt}"


class HostReason(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why one host was not chosen; no cause: it could be."""

    host: str
    cause: Cause = Cause.NONE
    sentence: str = ""
    rank: tuple[float, ...] = ()
    """How it ranks, where it could be chosen."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to `why`, for anything that has an id or a name."""

    kind: str
    """`job`, `machine`, `host`, `trigger`."""
    id: str
    name: str = ""
    state: str
    reason: Reason
    position: int | None = None
    """Its place in the queue, from one."""
    hosts: tuple[HostReason, ...] = ()
    history: tuple[str, ...] = ()
    """What came before, oldest first: sentences with their times."""
