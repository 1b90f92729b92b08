"""What can be asked of a manager. Each question is answered by items of one type, then an end."""

from __future__ import annotations

import msgspec

from encamp.model.command import CommandRecord
from encamp.model.event import Event
from encamp.model.host import Host
from encamp.model.machine import Machine
from encamp.model.property import Value


class AskStatus(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Answered by one `Status`."""


class AskHosts(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Answered by `Host`s, sorted by name. Patterns of names, `@group`; none: all."""

    hosts: tuple[str, ...] = ()
    brief: tuple[str, ...] | None = None
    """Only readings of these properties, and no definitions; None: everything."""


class AskProperties(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Query hosts anew, wait for the answers (or until `timeout`), then like `AskHosts`."""

    hosts: tuple[str, ...] = ()
    properties: tuple[str, ...] = ()
    timeout: float = 10.0


class AskMachines(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Answered by `SiteMachine`s."""

    hosts: tuple[str, ...] = ()


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


class ForgetHost(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """A host that is gone for good is no longer part of the site. Answered by its last `Host`."""

    host: str


class AskRecording(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Everything triggers can see, now: one `Recording`, to test triggers against elsewhere."""


Question = (
    AskStatus
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
    | AskRecording
)


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


class SiteMachine(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    """The agent's name."""
    known: bool
    """Is its host joined, so that this is how things are and not how they were?"""
    machine: Machine


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
