"""What a simulated site is made of: its hosts, its environments, and who wants what when."""

from __future__ import annotations

import enum

import msgspec

from encamp.model.policy import Policy
from encamp.model.size import MIB, Size
from encamp.model.trigger import TriggerDefinition
from encamp.sim.costs import MEASURED


class HostKind(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Hosts that are alike."""

    name: str = ""
    count: int = 1
    cpus: int
    memory: int
    disk: int = 1024 * 1024 * MIB
    groups: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    """Environments whose images they have from the beginning."""
    network: float = MEASURED.network
    claims: int | None = None
    """Bytes of memory that they say they have, if that is not true."""

    def names(self) -> list[str]:
        digits = len(str(self.count))
        return [f"{self.name}{number:0{digits}}" for number in range(1, self.count + 1)]


class Wanted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An environment, as far as it matters here."""

    name: str = ""
    cpus: int = 1
    memory: int = 512 * MIB
    disk: int = 0
    image: int = MEASURED.image
    templates: bool = True
    clone: float = MEASURED.clone
    boot: float = MEASURED.boot
    template: float = MEASURED.template
    end: float = MEASURED.end
    classes: tuple[str, ...] = ()
    reuse: bool = False
    """May its machines have one job of their owner after the other?"""
    hosts: tuple[str, ...] = ()
    """Groups of hosts that are its own where hosts are divided; none: they are dealt out."""

    @property
    def size(self) -> Size:
        return Size(self.cpus, self.memory, self.disk)


class Memory(enum.Enum):
    """What the field of a trace means that says how much memory is asked for."""

    PER_CPU = "KiB per processor"
    """As the format's definition says."""
    PER_MACHINE = "bytes per machine"
    NOTHING = "nothing"
    """It is not looked at."""


class Rule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job of a trace becomes, if all that the rule says is true of it."""

    environment: str
    properties: tuple[str, ...] = ()
    """Patterns, of which one must match one of the properties that the job asks for."""
    queues: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    user_groups: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    requirements: str = ""
    rank: str = ""
    priority: int = 0


class Need(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that jobs ask for beside their environment, by a property of theirs."""

    property: str
    """A pattern."""
    hosts: tuple[str, ...] = ()
    """Only hosts of one of these groups,"""
    requirements: str = ""
    """and of which this is true."""


class Reading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a trace is read."""

    rules: tuple[Rule, ...] = ()
    """The first that matches counts."""
    needs: tuple[Need, ...] = ()
    """All that match count."""
    environment: str = ""
    """For jobs that no rule matches."""
    machine_cpus: int | None = None
    """Processors of one machine at most: a larger job gets several machines, all or none. Jobs
    that say how many nodes they want get as many machines."""
    memory: Memory = Memory.PER_CPU
    faster: float = 1.0
    """So many times more jobs an hour than there were."""
    retries: int = 0


class Generated(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Jobs that nobody has ever submitted."""

    jobs: int = 1000
    every: float = 10.0
    """Seconds between two of them, on average."""
    run: float = 300.0
    """Seconds that half of them run for at most;"""
    spread: float = 1.0
    """how much they differ: the deviation of the logarithm."""
    cpus: tuple[int, ...] = (1,)
    """One of these each."""
    machines: tuple[int, ...] = (1,)
    apart: bool = False
    """Are the machines of one job on different hosts?"""
    environments: dict[str, float] = {}
    """How many jobs want each; all alike if none is said."""
    turn: float = 0.0
    """After so many seconds the next environment takes the part of the one before; 0: never."""
    owners: int = 4
    retries: int = 0
    cancelled: float = 0.0
    """The part of them that somebody cancels before they end by themselves."""
    standing: float = 0.0
    """The part of them that is machines without a job, which somebody ends after a time."""


class Sharing(enum.Enum):
    """Who uses which hosts."""

    ON_DEMAND = "on demand"
    """Every environment any host: machines are made as they are wanted, which takes its time."""
    STATIC = "static"
    """Each environment owns its hosts, on which it is installed: jobs begin there at once."""


class Division(enum.Enum):
    """How many hosts each environment owns, where that is not said."""

    EQUAL = "equal"
    DEMAND = "demand"
    """By what all of its jobs need: as somebody would who knew the future."""


class Compared(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One way to run the site."""

    name: str = ""
    sharing: Sharing = Sharing.ON_DEMAND
    division: Division = Division.EQUAL
    reuse: bool = True
    """Do jobs ask for machines that were left, where their environment allows it?"""
    triggers: tuple[TriggerDefinition, ...] = ()
    """Beside the site's; one of the same name counts instead."""
    policy: Policy = Policy()


class SimulatedSite(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    hosts: tuple[HostKind, ...]
    environments: dict[str, Wanted]
    trace: Reading | None = None
    jobs: Generated | None = None
    policies: tuple[Compared, ...] = ()
    triggers: tuple[TriggerDefinition, ...] = ()
    path: str = ""
