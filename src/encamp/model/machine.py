"""A machine: its record, the states it goes through, and the phases of its life."""

from __future__ import annotations

import enum

import msgspec

from encamp.model.driver import DRIVERS, DriverName, Isolation
from encamp.model.errors import Code, EncampError
from encamp.model.link import Link
from encamp.model.node import Node
from encamp.model.size import Size
from encamp.model.storage import Storage


class State(enum.Enum):
    STARTING = "starting"
    """In the journal; its guest has not answered yet."""
    RUNNING = "running"
    PAUSED = "paused"
    """Stands still in memory, uses no processor."""
    SUSPENDED = "suspended"
    """Lies in a context file; has no process."""
    STOPPED = "stopped"
    """Ended as asked. Only its record and console are left."""
    FAILED = "failed"
    """Ended by itself. Only its record and console are left."""


class Move(enum.Enum):
    """What may be done to a machine, or happen to it."""

    ACTIVATE = "activate"
    EXECUTE = "execute in"
    PAUSE = "pause"
    RESUME = "resume"
    SUSPEND = "suspend"
    RESTORE = "restore"
    SAVE = "save"
    STOP = "stop"
    KILL = "kill"
    FAIL = "fail"
    REMOVE = "remove"


TRANSITIONS: dict[Move, dict[State, State | None]] = {
    Move.ACTIVATE: {State.STARTING: State.RUNNING},
    Move.EXECUTE: {State.RUNNING: State.RUNNING},
    Move.PAUSE: {State.RUNNING: State.PAUSED},
    Move.RESUME: {State.PAUSED: State.RUNNING},
    Move.SUSPEND: {State.RUNNING: State.SUSPENDED, State.PAUSED: State.SUSPENDED},
    Move.RESTORE: {State.SUSPENDED: State.RUNNING},
    Move.SAVE: {State.RUNNING: State.RUNNING},
    Move.STOP: {State.RUNNING: State.STOPPED},
    Move.KILL: {
        State.STARTING: State.STOPPED,
        State.RUNNING: State.STOPPED,
        State.PAUSED: State.STOPPED,
        State.SUSPENDED: State.STOPPED,
    },
    Move.FAIL: {
        State.STARTING: State.FAILED,
        State.RUNNING: State.FAILED,
        State.PAUSED: State.FAILED,
    },
    Move.REMOVE: {State.STOPPED: None, State.FAILED: None, State.SUSPENDED: None},
}
"""Which moves each state allows, and where they lead (None: the machine is no more)."""

COMMANDS: dict[Move, str] = {
    Move.EXECUTE: "exec",
    Move.PAUSE: "pause",
    Move.RESUME: "resume",
    Move.SUSPEND: "suspend",
    Move.RESTORE: "restore",
    Move.SAVE: "save",
    Move.STOP: "stop",
    Move.KILL: "kill",
    Move.REMOVE: "rm",
}
"""The moves a person can make, as commands."""

IDLE_FOR = 3600.0
"""Seconds for which a machine is kept that no job has taken again."""

ALIVE = frozenset({State.STARTING, State.RUNNING, State.PAUSED})
"""States in which a machine has a process."""


def possible(state: State) -> list[Move]:
    """The moves a person can make from this state."""
    return [move for move in COMMANDS if state in TRANSITIONS[move]]


class Phase(enum.Enum):
    """The seven phases of a job in a machine."""

    CHECK = "check"
    """The image is checked."""
    START = "start"
    """The machine is cloned, booted or restored."""
    ACTIVATION = "activation"
    """The guest is waited for by testing it."""
    INPUT = "input"
    """Files are copied in."""
    COMMAND = "command"
    """The command runs."""
    OUTPUT = "output"
    """Files are copied out."""
    END = "end"
    """The machine is destroyed, shut down, paused, suspended or kept."""


class PhaseTime(msgspec.Struct, frozen=True):
    phase: Phase
    how: str
    """What was done, in a word: cloned, booted, restored, 3 files, destroyed ..."""
    started: float
    """Seconds after the request."""
    seconds: float


class After(enum.Enum):
    """What becomes of a machine when its job is done."""

    DESTROY = "destroy"
    SHUTDOWN = "shutdown"
    PAUSE = "pause"
    SUSPEND = "suspend"
    KEEP = "keep"
    SAVE = "save"
    """Kept as a new image, then destroyed."""


class Share(msgspec.Struct, frozen=True):
    """A directory of the host, shown live in the machine."""

    source: str
    path: str
    readonly: bool = False


class Machine(msgspec.Struct, frozen=True, gc=False):
    """The record of one machine: what is written to the journal."""

    id: str
    name: str
    owner: int
    host: str
    environment: str
    image: str
    size: Size
    state: State
    reason: str
    """Why it is in that state: a sentence."""
    created: float
    changed: float
    """When it came into this state."""
    template: str | None = None
    """Key of the template it was cloned from; None if it was booted."""
    driver: DriverName = DriverName.EMULATION
    """What it is made of. What it is made of when it is suspended, it needs to wake up."""
    isolation: Isolation = Isolation.KERNEL
    """What keeps its guest in."""
    processor: str = ""
    """The model of the host's processor, if it was made under KVM and so was shown that one."""
    kvm: str = ""
    """The host's kernel and what it makes of that processor, if it was made under KVM."""
    tied: bool = False
    """It has no life of its own: it ends with the process that asked for it."""
    storage: Storage = Storage.RAM
    """Where it keeps what it writes: never AUTO, that has been decided."""
    network: str = "none"
    shares: tuple[Share, ...] = ()
    command: tuple[str, ...] = ()
    """What it was made to run, if it was made for one command."""
    phases: tuple[PhaseTime, ...] = ()
    devices: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    """What else QEMU was told, by the administrator who described the environment."""
    variables: dict[str, str] = {}
    """What every command in it finds in its environment: the image's, and the context's."""
    workdir: str | None = None
    """Where commands start that do not say it, if that is there; else in their user's home."""
    whole: bool = False
    """It was made from a whole disk: it has its own init, and sets up its own network."""
    guest: bool = True
    """Whether Encamp's guest program answers in it; if not, it is reached by ssh alone."""
    ssh: int = 0
    """The port of this host that leads to its ssh server, if one does."""
    handed: tuple[str, ...] = ()
    """Files that its context put there: they are the machine's own, and no part of an image."""
    link: Link | None = None
    """What it has on a bridge of its host, if its network is one."""
    node: Node | None = None
    """What it is to a batch system, if it is a worker node."""
    idle: bool = False
    """No job has it; the next one of its owner's may. It gives way to whoever needs its room."""

    @property
    def runs_on(self) -> str:
        """What its processor is, in a word."""
        return DRIVERS[self.driver].shown

    def outside(self) -> Machine:
        """As much of it as concerns everybody. What a machine runs, and with what, is its owner's
        business: there may be secrets among it."""
        if not (self.command or self.variables or self.shares or self.handed or self.words):
            return self
        return msgspec.structs.replace(
            self, command=(), variables={}, shares=(), handed=(), words=(), workdir=None
        )

    def moved(self, move: Move, reason: str, now: float) -> Machine:
        """The record after a move; the machine must be in a state that allows it."""
        target = self.check(move)
        assert target is not None, "a removed machine has no record"
        return msgspec.structs.replace(self, state=target, reason=reason, changed=now)

    def check(self, move: Move) -> State | None:
        """Where the move would lead; a clear refusal if the state does not allow it."""
        targets = TRANSITIONS[move]
        if self.state not in targets:
            options = ", ".join(COMMANDS[move] for move in possible(self.state))
            raise EncampError(
                Code.WRONG_STATE,
                f"Cannot {move.value} machine {self.name}: it is {self.state.value}"
                f" ({self.reason}).",
                f"Possible now: {options}.",
            )
        return targets[self.state]
