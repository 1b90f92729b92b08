"""What Encamp needs of a batch system. Another one is another subclass.

Everything here may block for as long as the batch system takes to answer: callers use threads. An
`EncampError` that is `transient` says that it did not answer, and may do so later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from encamp.machines.hardware import TRANSLATION_BUFFER
from encamp.machines.standing import OWN
from encamp.model.batch import Bait, BatchJob, GivenBack, JobStanding, Offered, Task, Waiting
from encamp.model.errors import Code, EncampError
from encamp.model.size import MIB

CARRIER = 32 * MIB
"""Bytes that the processes hold which carry a job into its machine."""
AROUND = OWN + TRANSLATION_BUFFER["ordinary"] * MIB + CARRIER
"""Bytes that the processes around a machine hold beside its memory, where they are counted as the
job's."""


class EndingError(EncampError):
    """The batch system is ending a job, or its lost run, and has not come to an end with that:
    whoever keeps the job's starter from it is in its way. It is asked again until it has.
    `queued`: the job is in the queue again meanwhile, or may be."""

    def __init__(self, sentence: str, *, queued: bool = True) -> None:
        super().__init__(Code.WRONG_STATE, sentence, transient=True)
        self.queued = queued


class BatchSystem(ABC):
    name: ClassVar[str]

    # ── jobs that come to this host ──────────────────────────────────────────────────────────────

    @abstractmethod
    def job_of(self, pid: int) -> str | None:
        """The id of the job that a process of this host belongs to, by what the kernel says of the
        process and its ancestors; None: of none. Does not ask the batch system."""

    @abstractmethod
    def describe(self, id: str) -> BatchJob:
        """What the batch system knows of a job that runs here."""

    def task_of(self, pid: int, variables: Mapping[str, str]) -> Task:
        """Which task of its job a process is. What its variables say is its own word, by which it
        can gain nothing. Does not ask the batch system."""
        return Task()

    def marks_of(self, pid: int) -> tuple[int, ...]:
        """Groups of users that a process has only because it is of a job, and by which the batch
        system finds all that is left of the job, to end it. Does not ask the batch system."""
        return ()

    @abstractmethod
    def give_back(self, job: BatchJob, task: Task, reason: str, *, hold: bool) -> GivenBack:
        """Put a job of which a task was begun here back into the queue, for a reason that its user
        can read with the batch system's own commands. `hold`: it does not begin again until
        somebody says so."""

    def bring_back(self, job: BatchJob, task: Task, reason: str, *, hold: bool, held: bool) -> str:
        """The same for a job whose starter is gone, if it was killed and nothing else ended the
        job: not its user or an administrator, nor a limit. Raises a transient error as long as that
        cannot be told, and another one if the job is to stay as it is. `held`: the batch system
        cannot have noticed the starter's end yet; if it is ending the job itself, that has to be
        said by an `EndingError`, since it may wait for the starter. Of the job only what tells it
        from others is known for sure, and how often it was begun before. Returns what is left to do
        for `finish`, before which nothing was done; empty: all is done."""
        raise EncampError(
            Code.WRONG_STATE, f"'{self.name}' does not take jobs back that have ended."
        )

    def finish(self, job: BatchJob, left: str, reason: str, *, hold: bool) -> None:
        """Do what `give_back` or `bring_back` has left, which was written down since: it may have
        been begun by an agent that was killed. Raises an `EndingError` while it has to wait for the
        end of the lost run."""
        raise EncampError(Code.WRONG_STATE, f"'{self.name}' has left nothing to do.")

    def is_queued(self, id: str) -> bool:
        """Does a job wait that has a run here? Then that is no longer the batch system's, whatever
        comes of it. Asked when something has failed that `commands` says to begin tasks. Needs no
        rights of its own."""
        return False

    def commands(self, environment: str) -> dict[str, Offered]:
        """Its own commands that a job finds in a machine of an environment, by name. Those that
        begin something begin it in that environment, or are not there."""
        return {}

    # ── this host ────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def bait(self) -> Bait:
        """How this host stands. Closed by us is what carries our mark in its reason."""

    @abstractmethod
    def close(self, reason: str) -> None:
        """Have no more jobs sent here. Those that run go on."""

    @abstractmethod
    def open(self) -> None:
        """Undo `close`. What an administrator has closed stays closed."""

    def close_for_good(self, reason: str) -> None:
        """An administrator's own closing, which only an administrator undoes: without our mark."""
        raise self._not_known()

    def open_for_good(self) -> None:
        """An administrator's own opening, whoever has closed."""
        raise self._not_known()

    def _not_known(self) -> EncampError:
        return EncampError(
            Code.USAGE,
            f"Encamp does not know how administrators close and open hosts of '{self.name}'.",
            "Use the batch system's own command.",
        )

    # ── the queue ────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def waiting(self) -> tuple[Waiting, ...]:
        """Jobs that wait, by the environment they want."""

    def standing(self, id: str) -> JobStanding | None:
        """How a job stands, wherever it is, as far as whoever asks may know; None: there is none
        of that id, or the batch system does not tell. Needs no rights of its own."""
        return None
