"""A batch system as far as a bait goes, whose answers a test decides."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, settings

from encamp.batch.system import BatchSystem
from encamp.model.batch import Bait, BaitState, BatchJob, GivenBack, Task, Waiting
from encamp.model.errors import Code, EncampError

MARK = "encamp: "

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""How long an example takes says more about the machine than about what is tested."""


class Pretended(BatchSystem):
    """Knows one host. Its reason carries the mark if the agent has closed it."""

    name = "pretended"

    def __init__(self) -> None:
        self.reason = ""
        """Empty: it is open."""
        self.calls: list[str] = []
        self.silent = False
        self.before_answer: Callable[[], None] = lambda: None
        """Happens in the middle of a question."""

    def drain(self, reason: str) -> None:
        """As an administrator does it."""
        self.reason = reason

    def resume(self) -> None:
        self.reason = ""

    def bait(self) -> Bait:
        self._answer()
        if not self.reason:
            return Bait(state=BaitState.OPEN)
        if self.reason.startswith(MARK):
            return Bait(state=BaitState.FULL, reason=self.reason.removeprefix(MARK))
        return Bait(state=BaitState.CLOSED, reason=self.reason)

    def close(self, reason: str) -> None:
        self._answer()
        self.calls.append(f"close: {reason}")
        if not self.reason or self.reason.startswith(MARK):
            self.reason = MARK + reason

    def open(self) -> None:
        self._answer()
        self.calls.append("open")
        if self.reason.startswith(MARK):
            self.reason = ""

    def _answer(self) -> None:
        self.before_answer()
        if self.silent:
            raise EncampError(Code.UNREACHABLE, "The batch system does not answer.", transient=True)

    def job_of(self, pid: int) -> str | None:
        return None

    def describe(self, id: str) -> BatchJob:
        raise NotImplementedError

    def give_back(self, job: BatchJob, task: Task, reason: str, *, hold: bool) -> GivenBack:
        raise NotImplementedError

    def waiting(self) -> tuple[Waiting, ...]:
        return ()
