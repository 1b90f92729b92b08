"""What can be asked of a manager. Each question is answered by items of one type, then an end."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from encamp.model.command import CommandRecord
from encamp.model.environment import DescriptionFile, Environment, image_name
from encamp.model.event import Event
from encamp.model.host import Host
from encamp.model.job import Command, Copy
from encamp.model.leader import Leadership
from encamp.model.machine import Machine, State
from encamp.model.meeting import Meeting
from encamp.model.property import Value
from encamp.model.recipe import Compression
from encamp.model.request import Request
from encamp.model.size import Size
from encamp.model.token import Scope


class AskStatus(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Answered by one `Status`."""


class AskHosts(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Answered by `Host`s, sorted by name. Patterns of names, `@group`; none: all."""

    hosts: tuple[str, ...] = ()
    brief: tuple[str, ...] | None = None
    """Only readings of these properties, and no definitions; None: everything."""
    after: str = ""
    """Only those whose names come after this."""
    most: int | None = None
    """At most so many."""


class AskProperties(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Query hosts anew, wait for the answers (or until `timeout`), then like `AskHosts`."""

    hosts: tuple[str, ...] = ()
    properties: tuple[str, ...] = ()
    timeout: float = 10.0


class AskMachines(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Answered by `SiteMachine`s, sorted by host and id."""

    hosts: tuple[str, ...] = ()
    id: str = ""
    """One machine, by its name, its id, or the beginning of it; empty: all."""
    environment: str = ""
    """Only machines of this environment."""
    states: tuple[State, ...] = ()
    """Only machines in one of these; none: in any."""
    owner: str = ""
    """Only machines of this user."""
    mine: bool = False
    """Only machines that were made for requests of whoever asks."""
    after: tuple[str, str] = ("", "")
    """Only those after this host and id."""
    most: int | None = None
    """At most so many."""


class AskEvents(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Answered by `Event`s, oldest first; with `follow`, without end."""

    since: int = 0
    """Only events after this number."""
    last: int | None = None
    """At most so many of the past ones, the latest."""
    follow: bool = False
    hosts: tuple[str, ...] = ()


class IssueCommand(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Answered by one `CommandRecord` for each host, as soon as they are written down; before them
    by a `LeftOut` for each that a pattern or group means and that is not there to be told."""

    hosts: tuple[str, ...]
    name: str
    arguments: dict[str, Value] = {}
    timeout: float | None = None
    texts: bool = False
    """The arguments are texts, to be understood as the command's parameters say."""


class LeftOut(msgspec.Struct, frozen=True, tag=True):
    """A host that was not told, though it was meant."""

    host: str
    reason: str
    """Such as `is lost: nothing was heard of it for 6 seconds`."""


class AskCommands(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Answered by `CommandRecord`s, the latest first."""

    id: str = ""
    """The beginning of one's id; empty: all."""
    hosts: tuple[str, ...] = ()
    last: int = 100
    under_way: bool = False
    """Only those that are not over."""


class FollowCommands(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Answered by `Output`s as they come, and by a `CommandRecord` for each that is over."""

    offsets: dict[str, int]
    """Their ids, and from where on the output of each is wanted."""


class CancelCommand(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Answered by its `CommandRecord`."""

    id: str


class AskTriggers(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Answered by `TriggerView`s."""

    name: str = ""


class AskTriggerLog(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Answered by `core.actions.Judged`s, oldest first."""

    name: str = ""
    last: int = 100
    follow: bool = False


class ReloadTriggers(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Read the files again; answered like `AskTriggers`. An error, if they are wrong: the set that
    was running goes on."""


class AskMembers(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Who belongs to the site? Answered by one `SiteMembers`."""


class ChangeMembers(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Hosts were added or removed. Answered by one `SiteMembers`: those that count then."""

    members: bytes
    """The whole list, as in members.json."""


class SiteMembers(msgspec.Struct, frozen=True, kw_only=True):
    members: bytes
    """As in members.json; empty: none are known."""


class GoOn(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """The store was put back from a backup: start things again. Answered by one `GoneOn`."""

    cancel_waiting: bool
    """Cancel what waits; else it is started, whether it ran since the backup or not."""
    keep_tokens: bool = False
    """Else all are revoked."""


class GoneOn(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    waiting: int
    """Requests that waited."""
    tokens: int
    """Tokens that were revoked."""


class ForgetHost(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """A host that is gone for good is no longer part of the site. Answered by its last `Host`."""

    host: str


class AskRecording(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Everything triggers can see, now: one `Recording`, to test triggers against elsewhere."""


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Queue a request. Answered by its `RequestRecord` as soon as it is written down. An error says
    what is wrong with it, or why no host of this site could ever take it.

    Of `request`, `id`, `owner`, `groups`, `submitted`, `classes`, `size`, `described` and `own` are
    the manager's to say: what is given there does not count."""

    request: Request
    descriptions: tuple[DescriptionFile, ...] = ()
    """The asker's own files, if one of them describes the environment that is asked for."""
    key: str = ""
    """Chosen by whoever asks: asked again with the same key, the same record is answered, and
    nothing is queued twice."""


class AskRequests(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Answered by `RequestRecord`s, the latest first."""

    id: str = ""
    """The beginning of one's id, or its label; empty: all."""
    last: int = 100
    under_way: bool = False
    """Only those that are not over."""


class FollowRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Answered by its `RequestRecord` now and whenever it has changed, until it is over."""

    id: str


class EndRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Cancel a request, however far it is. Answered by its `RequestRecord`."""

    id: str


class AskTicket(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Where to speak with a machine of a request that has begun, or with a machine. Answered by one
    `Ticket`."""

    request: str = ""
    number: int = 0
    machine: str = ""
    """A machine of the site, by name, id or the beginning of its id: to run a command in it."""
    exec: Exec | None = None
    """What to run in the machine; only with `machine`."""


class Exec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    command: Command
    """Without arguments, files are copied and nothing is run."""
    timeout: float | None = None
    inputs: tuple[Copy, ...] = ()
    outputs: tuple[Copy, ...] = ()


class MoveMachine(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Stop, save or remove a machine of one's own, or the like, wherever on the site it is.
    Answered by one `CommandRecord`, as soon as it is written down."""

    machine: str
    """Its name, its id, or the beginning of that."""
    move: Move
    force: bool = False
    """Remove it also if it is running."""
    image: str = ""
    """The NAME or NAME:VERSION that it is saved as."""
    compression: Compression = Compression.ZSTD
    """How that image is packed."""


class Move(StrEnum):
    """What can be done with a machine; commands `machine.*` are called the same."""

    STOP = "stop"
    KILL = "kill"
    PAUSE = "pause"
    RESUME = "resume"
    SUSPEND = "suspend"
    RESTORE = "restore"
    REMOVE = "remove"
    SAVE = "save"
    """As an image, on the machine's host. The command returns its name and digest."""
    CONSOLE = "console"
    """Print what the guest has printed: the command's output."""


class AskWhy(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Answered by one `Explanation`: of a job, machine, host, trigger or command."""

    id: str
    """Its id (or the beginning of it), name or label."""
    hosts: int = 100
    """At most so many hosts' reasons."""


class AskEnvironments(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Answered by `SiteEnvironment`s: those that whoever asks may use. If something is wrong with
    the site's files, that error comes after them."""

    name: str = ""


class AskBatchJobs(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Answered by `BatchRecord`s, the latest first: jobs of batch systems that hosts have taken.
    Before them comes a `LeftOut` for each host that does not answer. An agent can be asked, too, at
    a door of its own, of its host alone."""

    id: str = ""
    """Of one job: `17`, or `slurm:17` if there are several batch systems; empty: of all."""
    hosts: tuple[str, ...] = ()
    last: int = 100
    under_way: bool = False
    """Only those that are not over."""


class CreateToken(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Answered by one `NewToken`."""

    owner: str = ""
    """Who it speaks for; empty: whoever asks."""
    scope: Scope = Scope.READ
    label: str = ""
    lifetime: float
    """Seconds until it ends."""


class AskTokens(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Answered by `Token`s: administrators see all, others their own."""


class RevokeToken(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """From now on it opens nothing. Answered by the `Token` that it was."""

    id: str


class AskAudit(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Answered by `AuditEntry`s, oldest first."""

    since: int = 0
    """Only entries after this number."""
    last: int | None = 100
    """At most so many, the latest; None: all of them."""
    who: str = ""


Question = (
    Submit
    | AskRequests
    | FollowRequest
    | EndRequest
    | AskTicket
    | MoveMachine
    | AskWhy
    | AskStatus
    | AskHosts
    | AskProperties
    | AskMachines
    | AskEvents
    | IssueCommand
    | AskCommands
    | FollowCommands
    | CancelCommand
    | AskTriggers
    | AskTriggerLog
    | ReloadTriggers
    | ForgetHost
    | GoOn
    | AskMembers
    | ChangeMembers
    | AskRecording
    | AskEnvironments
    | AskBatchJobs
    | CreateToken
    | AskTokens
    | RevokeToken
    | AskAudit
)

LOOKS = (
    AskRequests,
    AskWhy,
    AskStatus,
    AskHosts,
    AskProperties,
    AskMachines,
    AskEvents,
    AskCommands,
    AskTriggers,
    AskTriggerLog,
    AskEnvironments,
    AskBatchJobs,
    AskTokens,
    AskAudit,
)
"""Those who only look can ask again if nobody knows whether they were heard."""


class Ticket(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Shown to an agent, it opens one conversation: with one part of a request, or one command."""

    host: str
    id: str
    """What is spoken with: `claim_id`, or a command's id."""
    secret: str
    meeting: Meeting | None = None
    """Where; None: its host takes no clients."""


class Asker(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whom the manager takes whoever asks for."""

    user: str
    administrator: bool = False
    scope: Scope | None = None
    """How far the token goes that was shown; None: none was."""
    expires: float = 0.0
    """When it ends."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    site: str
    version: str
    instance: str
    started: float
    hosts: dict[str, int]
    """How many are joined, left, lost."""
    machines: int
    commands_under_way: int
    triggers: int
    store: str
    """What is wrong with it; empty: nothing."""
    messages: int
    """Taken from agents since it started."""
    leads: bool = True
    """If not, it stands by, and knows nothing of the site."""
    leadership: Leadership = Leadership()
    triggers_refused: str = ""
    """Why those in the site's files are not the ones that are watched, if they are not."""
    requests: dict[str, int] = {}
    """How many are in each state, of those that are not over."""
    asker: Asker | None = None
    restored: str = ""
    """Why nothing is started: the store was put back from a backup. Empty: it is."""


class SiteMachine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    host: str
    """The agent's name."""
    known: bool
    """Is its host joined, so that this is how things are and not how they were?"""
    machine: Machine
    owner: str = ""
    """The name of the user whose request it was made for; empty: it was made for none."""
    home: str = ""
    """Of machines of one's own: names the home of Encamp that it is in, on its host."""


class SiteEnvironment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What there is to ask for."""

    name: str
    summary: str = ""
    image: str = ""
    """What its image is called."""
    size: Size
    network: str = "none"
    classes: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    shipped: bool = False
    """Does it come with Encamp?"""
    file: str = ""
    """The manager's file that describes it; only administrators are told."""


def site_environment(environment: Environment, file: str, *, shipped: bool) -> SiteEnvironment:
    return SiteEnvironment(
        name=environment.name,
        summary=environment.summary,
        image=image_name(environment),
        size=environment.size,
        network=environment.network,
        classes=environment.classes,
        labels=environment.labels,
        shipped=shipped,
        file=file,
    )


class Output(msgspec.Struct, frozen=True):
    command: str
    """The id of the command it is of."""
    offset: int
    piece: bytes


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    hosts: tuple[Host, ...]
    commands: tuple[CommandRecord, ...] = ()
    events: tuple[Event, ...] = ()
