"""What the door asks before it takes a job, and tells of those it took. Who keeps that is no
business of the door's."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Protocol

from encamp.agent.bait.errand import Fault
from encamp.model.batch import BatchJob
from encamp.model.batch_record import BatchRecord, Outcome


class Failing(Protocol):
    """Environments whose machines do not come up on this host."""

    def may_try(self, environment: str, owner: int, now: float) -> str:
        """Why this owner may not; empty: it may be tried."""

    def closing(self, now: float) -> Container[str]:
        """Environments for which no more jobs are to come here."""

    def failed(self, environment: str, reason: str, owner: int, now: float, fault: Fault) -> None:
        """A machine did not come up, and it was not for want of room."""

    def came_up(self, environment: str, owner: int, now: float) -> None:
        """A machine answered."""


class Records(Protocol):
    """Who runs what where. Keys are ids of commands; one that is unknown is ignored."""

    def came(self, key: str, job: BatchJob, *, environment: str, user: str, step: str = "") -> Any:
        """Before anything is made for it."""

    def change(self, key: str, **fields: Any) -> Any: ...

    def over(self, key: str, outcome: Outcome, **fields: Any) -> Any: ...

    def run_of(self, job: BatchJob, since: float) -> BatchRecord | None:
        """The run of the job that began then, if it is over here."""

    def running(self) -> list[BatchRecord]:
        """Those that are not over."""


class Hopeful:
    """Everything may be tried."""

    def may_try(self, environment: str, owner: int, now: float) -> str:
        return ""

    def closing(self, now: float) -> Container[str]:
        return ()

    def failed(self, environment: str, reason: str, owner: int, now: float, fault: Fault) -> None:
        pass

    def came_up(self, environment: str, owner: int, now: float) -> None:
        pass


class Forgetful:
    """Nothing is written down."""

    def came(self, key: str, job: BatchJob, *, environment: str, user: str, step: str = "") -> None:
        pass

    def change(self, key: str, **fields: Any) -> None:
        pass

    def over(self, key: str, outcome: Outcome, **fields: Any) -> None:
        pass

    def run_of(self, job: BatchJob, since: float) -> BatchRecord | None:
        return None

    def running(self) -> list[BatchRecord]:
        return []
