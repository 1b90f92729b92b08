"""What the daemons of a simulated site say to each other, as far as it matters here.

The claims and commands are those of the real bus; what travels with them is left out.
"""

from __future__ import annotations

import msgspec

from encamp.model.machine import Machine
from encamp.model.property import Reading
from encamp.model.request import Cause
from encamp.model.size import Size


class Claim(msgspec.Struct, frozen=True, gc=False):
    id: str
    environment: str
    size: Size
    seconds: float
    owner: int = 0


class Release(msgspec.Struct, frozen=True, gc=False):
    id: str


class Execute(msgspec.Struct, frozen=True, gc=False):
    id: str
    request: str
    number: int
    environment: str
    size: Size
    standing: bool = False
    """The machine is wanted for itself: it stays when the command is over."""
    owner: int = 0
    reuse: bool = False
    """It may run in a machine that was left idle, and leaves its own so; one that is wanted for
    itself is idle from the beginning."""


class Remove(msgspec.Struct, frozen=True, gc=False):
    """End a machine that stands."""

    machine: str
    only_idle: bool = False
    """Unless a job has taken it."""


class Cancel(msgspec.Struct, frozen=True, gc=False):
    id: str


class SayHello(msgspec.Struct, frozen=True, gc=False):
    pass


class Answer(msgspec.Struct, frozen=True, gc=False):
    refusal: str = ""
    cause: Cause = Cause.NONE


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    instance: str
    groups: tuple[str, ...]
    readings: dict[str, Reading]
    machines: tuple[Machine, ...]
    under_way: tuple[str, ...]
    claims: tuple[str, ...]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    instance: str
    readings: dict[str, Reading] = {}
    machines: tuple[Machine, ...] | None = None


class Told(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a command gets on."""

    id: str
    over: bool = False
    phase: str = ""
    """How far its machine has come: `image`, `start`, `running`."""
    machine: str = ""
    exit_code: int | None = None
    failure: str = ""
    """Over without an exit code: why."""
    cause: Cause = Cause.NONE
    """CLAIM: its host would not take it."""
    standing: bool = False
    """Over, and its machine stays."""
    lost: bool = False
    """Over, and nobody knows how."""
    blames_environment: bool = False
    final: bool = False

    @property
    def began(self) -> bool:
        return self.phase == "running"


class News(msgspec.Struct, frozen=True, kw_only=True):
    instance: str
    commands: tuple[Told, ...]
