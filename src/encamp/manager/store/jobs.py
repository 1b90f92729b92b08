"""What callers want of the database: asked in the event loop's thread, done in the store's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection

from encamp.model.errors import EncampError

T = TypeVar("T")
Work = Callable[[Connection], T]
"""Raises EncampError only before it has changed anything."""


class Job:
    def __init__(
        self, work: Work[Any], future: asyncio.Future[Any], *, writes: bool, deadline: float
    ) -> None:
        self.work = work
        self.future = future
        self.writes = writes
        self.deadline = deadline
        """When it is given up, if the database does not answer."""
        self.outcome: Any = None
        self.fault: BaseException | None = None
        self.done = False

    def run(self, connection: Connection) -> None:
        """The database's own complaints are the caller's business: others share its fate."""
        self.outcome = self.fault = None
        try:
            self.outcome = self.work(connection)
        except EncampError as error:
            self.fault = error

    def fail(self, fault: BaseException) -> None:
        self.fault = fault
        self.done = True

    def deliver(self) -> None:
        """In the event loop's thread."""
        if self.future.done():
            return
        if self.fault is not None:
            self.future.set_exception(self.fault)
        else:
            self.future.set_result(self.outcome)


def deliver(jobs: list[Job]) -> None:
    for job in jobs:
        job.deliver()


def fail(future: asyncio.Future[None], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def fulfil(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
