"""Machines of requests, or of attempts at them, that were given up for lost: when their host comes
back with them, nobody wants them any more, and they are removed."""

from __future__ import annotations

from encamp.core.actions import EndPart
from encamp.core.happenings import Joined
from encamp.manager.store.store import Store
from encamp.model.request import RequestRecord, RequestState

MOST = 100_000


class Forsaken:
    def __init__(self) -> None:
        self._parts: dict[tuple[str, str], EndPart] = {}
        """By host and machine."""

    async def recall(self, store: Store) -> None:
        """Those that a former manager gave up."""
        async for record in store.lost_requests():
            self.moved(record)

    def moved(self, record: RequestRecord) -> None:
        # Hosts tell by themselves what becomes of jobs: their commands are under way.
        if record.request.job is not None:
            return
        for one in record.forsaken:
            self._forsake(record, one.number, one.attempt, one.host, one.machine)
        if record.state is RequestState.LOST:
            for part in record.parts:
                self._forsake(record, part.number, record.attempt, part.host, part.machine)

    def _forsake(
        self, record: RequestRecord, number: int, attempt: int, host: str, machine: str
    ) -> None:
        if machine and len(self._parts) < MOST:
            self._parts[host, machine] = EndPart(
                request=record.request.id, number=number, attempt=attempt, host=host
            )

    def found(self, told: Joined) -> list[EndPart]:
        """What is to be ended of what a host has brought back."""
        if not self._parts:
            return []
        keys = [(told.name, machine.id) for machine in told.machines]
        return [end for key in keys if (end := self._parts.pop(key, None)) is not None]
