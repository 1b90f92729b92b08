"""What Encamp needs of a batch system. Another one is another subclass.

Everything here may block for as long as the batch system takes to answer: callers use threads. An
`EncampError` that is `transient` says that it did not answer, and may do so later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from encamp.model.batch import Bait, BatchJob, GivenBack, JobStanding, Task, Waiting
from encamp.model.errors import Code, EncampError


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

    @abstractmethod
    def give_back(self, job: BatchJob, reason: str, *, hold: bool) -> GivenBack:
        """Put a job that was begun here back into the queue, for a reason that its user can read
        with the batch system's own commands. `hold`: it does not begin again until somebody says
        so."""

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
