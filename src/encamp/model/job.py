"""A job: a command line to run in an environment, with its files."""

from __future__ import annotations

import msgspec

from encamp.model.driver import DriverName, Isolation
from encamp.model.machine import After, PhaseTime, Share
from encamp.model.storage import Storage


class Copy(msgspec.Struct, frozen=True, gc=False):
    """Files to copy into or out of a machine."""

    source: str
    target: str | None = None


class User(msgspec.Struct, frozen=True, gc=False):
    """Who a command runs as inside: the same person as outside."""

    name: str
    uid: int
    gid: int
    group: str
    groups: tuple[int, ...]
    home: str


class Command(msgspec.Struct, frozen=True, gc=False):
    """What to run, and how."""

    arguments: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()
    workdir: str | None = None
    terminal: str | None = None
    """The kind of terminal to give it (TERM), if it is to have one."""


class MachineRequest(msgspec.Struct, frozen=True, gc=False):
    """What somebody wants a machine to be."""

    environment: str
    owner: User
    name: str | None = None
    cpus: int | None = None
    memory: int | None = None
    disk: int | None = None
    storage: Storage | None = None
    """As the environment says, if not given."""
    shares: tuple[Share, ...] = ()
    network: str | None = None
    """As the environment says, if not given."""
    driver: DriverName | None = None
    """As the environment says, if not given."""
    isolation: Isolation | None = None
    """The weakest that it takes; as the environment says, if not given."""
    boot: bool = False
    """Boot it, even if it could be cloned."""
    image: str | None = None
    """Another image than the environment's: NAME, NAME:VERSION or (the beginning of) a digest."""
    enrol: bool = False
    """Is it to become a worker node, as its environment says?"""
    batch: bool = False
    """Is it for jobs of its host's batch system, with the directories that these find inside?"""


class Job(msgspec.Struct, frozen=True, gc=False):
    machine: MachineRequest
    command: Command
    inputs: tuple[Copy, ...] = ()
    outputs: tuple[Copy, ...] = ()
    timeout: float | None = None
    after: After | None = None
    """As the environment says, if not given."""
    save_as: str | None = None


class Outcome(msgspec.Struct, frozen=True):
    """What became of a job."""

    machine: str
    exit_code: int
    reason: str
    started: bool
    """Whether the command was run at all; if not, the reason says why."""
    phases: tuple[PhaseTime, ...] = ()
    missing: tuple[str, ...] = ()
    """Output patterns that matched nothing."""
    problems: tuple[str, ...] = ()
    """Outputs that could not be copied whole, and an image that was not saved."""
    saved: str = ""
    """The digest of the image that its machine was saved as."""
