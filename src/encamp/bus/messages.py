"""What managers and agents say to each other.

Everything is a tagged struct in MessagePack. What an agent says is never believed further than its
type: sizes and numbers are bounded when it is decoded.
"""

from __future__ import annotations

import msgspec

from encamp.model.batch_record import BatchRecord
from encamp.model.command import CommandDefinition, CommandState
from encamp.model.machine import Machine
from encamp.model.meeting import Meeting
from encamp.model.property import PropertyDefinition, Reading, Value
from encamp.model.size import Size

# ── from an agent to the manager ─────────────────────────────────────────────────────────────────


class CommandNews(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """How a command is getting on. Told again until the manager has taken it."""

    id: str
    state: CommandState
    reason: str = ""
    started: float = 0.0
    ended: float = 0.0
    value: Value = None
    exit_code: int | None = None
    offset: int = 0
    """Where in its output the piece belongs."""
    piece: bytes = b""
    """A piece of its output, both streams as they came."""
    phase: str = ""
    """How far it is with a machine: `image`, `start`, `running`. Told again at its end: what did
    not come to `running` has not begun to run anything in the machine."""
    machine: str = ""
    """The machine's id, once it has one."""


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """An agent introduces itself, and tells everything it knows. A request: `Welcome` answers."""

    instance: str
    """Which run of the agent this is; every other message carries it too."""
    home: str
    """Which home it works in: two agents of one name in different homes are two."""
    version: str
    time: float
    """By its clock."""
    ahead: float | None = None
    """Seconds by which it has found its clock to be ahead of the manager's."""
    groups: tuple[str, ...] = ()
    properties: tuple[PropertyDefinition, ...] = ()
    commands: tuple[CommandDefinition, ...] = ()
    readings: dict[str, Reading] = {}
    machines: tuple[Machine, ...] = ()
    troubles: tuple[str, ...] = ()
    """What is wrong with its definitions: sentences."""
    under_way: tuple[str, ...] = ()
    """Ids of commands it has taken and not yet reported the end of."""
    owners: tuple[str, ...] | None = None
    """The users it can make machines for; None: all that have an account there."""
    claims: tuple[str, ...] = ()
    """What it has promised and not begun."""
    meeting: Meeting | None = None
    """Where clients can speak with what runs there; None: nowhere."""
    written: Written | None = None
    """The latest that it was told of the manager's store."""


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """The manager knows the agent now."""

    manager: str
    """Which run of the manager this is."""
    time: float
    interval: float
    silence: float


class Report(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """What has changed since the agent last said something; or all it was asked for. A request:
    answered by nothing, or by an error that makes the agent say hello again."""

    instance: str
    readings: dict[str, Reading] = {}
    machines: tuple[Machine, ...] | None = None
    """All of its machines, if any of them changed."""
    query: str = ""
    """The id of the query that it answers."""
    jobs: tuple[BatchRecord, ...] = ()
    """Those that a query asked for."""


class News(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """About commands. A request: answered by how much of each output the manager has."""

    instance: str
    commands: tuple[CommandNews, ...]


class Taken(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """The manager has written these down."""

    outputs: dict[str, int] = {}
    """Bytes of output that it has of each command it was told about."""


FromAgent = Hello | Report | News


# ── from the manager to agents ───────────────────────────────────────────────────────────────────


class Query(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Report these properties, or all of them, changed or not."""

    id: str
    properties: tuple[str, ...] = ()
    fresh: bool = False
    """Read them now; else as they were read on their last tick."""
    within: float = 0.0
    """Answer at some moment in so many seconds, so that not all do at once."""
    jobs: JobsWanted | None = None
    """Tell of these jobs of batch systems, and of no properties."""


class JobsWanted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which jobs of batch systems a host is to tell of: the latest."""

    user: str = ""
    """Only of this one; empty: of everybody."""
    id: str = ""
    """Only this one; see `AskBatchJobs`."""
    last: int = 100
    under_way: bool = False


class Execute(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Carry out a command. A request: nothing answers that it is written down; an error, that it
    will not be done. Told again until it is answered, and carried out once."""

    id: str
    name: str
    arguments: dict[str, Value] = {}
    issuer: str
    timeout: float
    written: Written | None = None


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Stop a command, if it is still under way. A request."""

    id: str


class Claim(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Promise to make a machine. A request: nothing answers that it is promised; an error says why
    not. The same claim again is the same promise. It is used up by the command of the same id."""

    id: str
    owner: str
    environment: str
    described: bool = False
    """The command will bring the environment's description along."""
    own: bool = False
    """The owner described the environment, and not the site."""
    size: Size
    seconds: float
    """For so long, counted by the agent, the room is kept."""


class Release(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """A promise is not needed any more. A request. Has no effect on what was begun."""

    id: str


class Written(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """How far the manager's store has come. A store that knows less was put back from a backup."""

    rank: int
    """Of the manager: which store it has, and its epoch."""
    number: int
    """Of the latest command that is in the store."""


class SayHello(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """A manager has started, or does not know the agent: introduce yourself."""

    manager: str
    within: float = 0.0
    """At some moment in so many seconds, so that not all do at once."""


FromManager = Query | Execute | Cancel | Claim | Release | SayHello | Written
Answer = Welcome | Taken

encode = msgspec.msgpack.Encoder().encode
decode_from_agent = msgspec.msgpack.Decoder(FromAgent).decode
decode_from_manager = msgspec.msgpack.Decoder(FromManager).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode
