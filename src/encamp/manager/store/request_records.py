"""Requests in the store, and how far they have come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection

from encamp.manager.store import requests
from encamp.manager.store.part import MOST, PAGE, Part
from encamp.model.request import RequestRecord

T = TypeVar("T")


class RequestRecords(Part):
    _next_request = 1

    async def add_request(self, record: RequestRecord) -> None:
        """It is on the disk when this returns."""
        rows = requests.rows([record], self._next_request)
        self._next_request += 1
        await self._worker.write(lambda connection: requests.add(connection, rows))

    async def write_requests(self, records: Sequence[RequestRecord]) -> None:
        """How far some have come: all of them are on the disk when it returns, or none."""
        changes = requests.changes(records)
        await self._worker.write(lambda connection: requests.write(connection, changes))

    async def request(self, name: str, owner: str = "") -> RequestRecord:
        """The one whose id begins so, or that is labelled so; of one owner, if one is given."""
        return await self._worker.read(partial(requests.beginning, name=name, owner=owner))

    async def requests(self, owner: str = "", last: int = 100) -> list[RequestRecord]:
        """The latest first."""
        last = max(0, min(last, MOST))
        found: list[RequestRecord] = []
        before: int | None = None
        while len(found) < last:
            look = partial(requests.latest, owner=owner, before=before, most=min(PAGE, last))
            page, before = await self._worker.read(look)
            found += page
            if before is None:
                break
        return found[:last]

    async def requests_under_way(self) -> AsyncIterator[RequestRecord]:
        """Those that are not over, the oldest first."""
        async for record in self._requests(requests.under_way):
            yield record

    async def lost_requests(self) -> AsyncIterator[RequestRecord]:
        """Those that were given up for lost, the oldest first."""
        async for record in self._requests(requests.lost):
            yield record

    async def _requests(
        self, look: Callable[[Connection, int], tuple[list[RequestRecord], int | None]]
    ) -> AsyncIterator[RequestRecord]:
        """Page by page, so that others get a turn in between."""
        after: int | None = 0
        while after is not None:
            page, after = await self._worker.read(partial(_at, look, after))
            for record in page:
                yield record


def _at(look: Callable[[Connection, int], T], place: int, connection: Connection) -> T:
    return look(connection, place)
