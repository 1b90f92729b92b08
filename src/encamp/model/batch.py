"""Jobs of a batch system that run in machines: what they are, what they were granted, and how a
host that takes them (a bait) stands towards the batch system."""

from __future__ import annotations

import enum

import msgspec

from encamp.model.size import MIB, Size

ENVIRONMENT = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
"""What a job may call an environment; everything else is refused wherever it comes from."""


BEHIND = {"pbs": "slurm"}
"""Batch systems whose jobs another one begins, which has the nodes."""


def with_nodes(system: str) -> str:
    """The batch system that has the nodes of this one."""
    return BEHIND.get(system, system)


SCRIPTS = frozenset({"", "batch", "interactive"})
"""What batch systems call the step that a job's own script is."""


class BatchJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job as its batch system knows it. Whose it is and what it was granted is asked there, and
    never believed of the job itself."""

    system: str
    """`slurm`, `gridengine`, ..."""
    id: str
    """As its users call it: `17`, `17_3` or `17.3` for a task of an array."""
    uid: int
    name: str = ""
    queue: str = ""
    """Its partition or queue."""
    account: str = ""
    """Its account or project."""
    cpus: int | None = None
    """Granted on this host; None: the batch system did not say."""
    memory: int | None = None
    """Bytes granted on this host; None: the batch system does not share memory out."""
    limit: int | None = None
    """Bytes that all of its processes may hold here, before the batch system ends it; None: it does
    not look, or control groups see to it."""
    restarts: int = 0
    """How often it was begun before."""
    returns: int | None = None
    """How often it came back before, since it could not be run or was lost; None: that is not told
    from its other restarts."""
    requeue: bool | None = True
    """May it be begun again, if it was lost under way? None: that is not known now."""
    hosts: tuple[str, ...] = ()
    """All nodes of it, the first first."""
    environment: str = ""
    """What it asked for where the batch system can tell; else the starter says so."""

    def has_come_back(self, often: int) -> bool:
        """So often, or more often."""
        return (self.restarts if self.returns is None else self.returns) >= often


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of the tasks of a job that a host runs: its script, or one of a step's."""

    step: str = ""
    """Of the job, where it has steps."""
    number: int = 0
    count: int = 1
    """Tasks of the step on this host, among which its grant is divided."""
    together: bool = False
    """Do these begin together, so that one machine can be for all of them?"""
    cpus: int | None = None
    """What the step has of the job's processors here, if not all. Its own word: it can only get
    less by that."""

    @property
    def is_script(self) -> bool:
        """Is it what the job itself consists of, and not one of its steps?"""
        return self.step in SCRIPTS


class GivenBack(msgspec.Struct, frozen=True, kw_only=True):
    """What a starter does whose job is back in its batch system's queue."""

    exit_code: int
    """It ends with this; the batch system may give it a meaning, such as 'again'."""
    wait: bool = False
    """First it waits for the batch system to end it, which it was asked to."""
    left: str = ""
    """What `finish` has to begin with before that, and to end when it has ended."""


class Reads(enum.Enum):
    """When a command takes something from its standard input. What it does not take is there for
    others: `while read job; do scancel $job; done`."""

    NEVER = "never"
    ALWAYS = "always"
    ALONE = "alone"
    """If it is given no word but options."""


class Offered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A command of the batch system's that jobs find in their machines, and that runs outside."""

    words: tuple[str, ...]
    """The program, as an absolute path, and what it is given before the job's own words."""
    reads: Reads = Reads.NEVER
    options: dict[str, int] = {}
    """How many words follow an option that is not followed by one, where that decides if it
    reads."""
    letters: bool = False
    """Do options of one letter stand together, and with what belongs to the last of them: -Hn4?"""
    instead: tuple[str, ...] = ()
    """Options with which it does not read."""
    check: tuple[str, ...] = ()
    """A command that succeeds if it may be run; none: it may."""
    lacking: str = ""
    """What a job is told where the check fails."""
    tasks: bool = False
    """Does it begin tasks of the job elsewhere? If it fails, that may be because the job goes
    back."""


class JobStanding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a job stands in its batch system, wherever it is: what its users see there."""

    state: str
    """In the batch system's own word: `PENDING`, `qw`, ..."""
    reason: str = ""
    """Why it is so, as the batch system says."""
    user: str = ""
    environment: str = ""
    waits: bool = False
    """Is it in the queue?"""
    held: bool = False
    """Does it wait until somebody says so?"""
    release: str = ""
    """How, if that depends on how it is held."""
    hosts: tuple[str, ...] = ()
    """Where it runs."""


class BaitState(enum.Enum):
    OPEN = "open"
    """Jobs may come."""
    FULL = "full"
    """Closed by the agent: another machine would not fit, or environments fail here."""
    CLOSED = "closed"
    """Closed by an administrator: never opened by the agent."""
    UNKNOWN = "unknown"
    """The batch system does not answer, or does not know this host."""


class Bait(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How this host stands towards the batch system."""

    state: BaitState
    reason: str = ""
    partly: bool = False
    """It is open, but one of several ways to it is still closed by us."""


class Waiting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Jobs in the batch system's queue that want one environment."""

    environment: str
    """Empty: none."""
    jobs: int
    cpus: int = 0
    oldest: float = 0.0
    """When the oldest of them was submitted, and"""
    owner: str = ""
    """whose it is; empty: the batch system does not tell."""


class Rule(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Which environment jobs get that name none. All that is given must hold."""

    environment: str
    """Empty: none, they are left alone."""
    queue: str = ""
    account: str = ""
    user: str = ""
    group: str = ""


class Threshold(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What must be free on a host."""

    memory: int = 0
    disk: int = 0


CLOSE = Threshold(memory=512 * MIB, disk=1024 * MIB)
OPEN = Threshold(memory=1024 * MIB, disk=2048 * MIB)


class BatchSettings(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """How this host works with its batch system: batch.yaml, the same on every host of a site."""

    system: str
    shares: tuple[str, ...] = ("/home",)
    """Directories that jobs find in their machines as they are here, live."""
    rules: tuple[Rule, ...] = ()
    """The first that fits decides."""
    environments: tuple[str, ...] = ()
    """Those that jobs may name; others are refused when they are submitted. None: all."""
    features: bool = False
    """Slurm: does `-C NAME` name an environment, too, if it is one of these?"""
    bait_feature: str = ""
    """Slurm: what the hosts with agents have as a feature, and no others; empty: nothing. Jobs that
    get a machine ask for it."""
    close: Threshold = CLOSE
    """With less free than this, the bait closes itself;"""
    open: Threshold = OPEN
    """with at least this, it opens again."""
    machines: int | None = None
    """At most so many at a time on a host."""
    every: float = 5.0
    """Seconds between two looks at whether it should be open, and at its worker nodes."""
    tries: int = 3
    """How often a job that has not begun is tried on the spot."""
    restarts: int = 3
    """After so many, a job that fails for want of a machine is held, and not queued again."""
    failures: int = 3
    """So many machines of an environment in a row that did not come up close the bait"""
    pause: float = 300.0
    """for so many seconds."""
    size: Size | None = None
    """Of machines whose job was granted nothing in particular; None: as the environment says."""
    watch: bool = False
    """Does this host look at the queue, for the whole site? One or two are enough."""
    programs: dict[str, str] = {}
    """Where the batch system's own things are, if not where its packages put them: `conf`,
    `root`, `cell`, ..."""
