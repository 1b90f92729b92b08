"""What a simulated manager has written down: all that is left of it when it dies.

What is only waited for is written a moment later than it is decided, as by the real one; whatever
lets something begin waits until all before it is written.
"""

from __future__ import annotations

from encamp.model.host import Host
from encamp.model.request import (
    REQUEST_OVER,
    REQUEST_TRANSITIONS,
    RequestRecord,
    RequestState,
    claim_id,
)
from encamp.sim.said import Told

LAZY = frozenset({RequestState.WAITING, RequestState.CLAIMING})


class Issued:
    """A command that makes a machine of a request: known to its host or not, but never two."""

    __slots__ = (
        "attempt",
        "host",
        "number",
        "request",
        "result",
        "taken",
        "to_stop",
        "told",
        "tried",
    )

    def __init__(self, request: str, number: int, attempt: int, host: str) -> None:
        self.request = request
        self.number = number
        self.attempt = attempt
        self.host = host
        self.taken = False
        """Its agent is known to have it."""
        self.tried = False
        """It may have it."""
        self.to_stop = False
        self.told: Told | None = None
        """The last that was heard of it."""
        self.result: Told | None = None

    @property
    def id(self) -> str:
        return claim_id(self.request, self.number, self.attempt)


class BrokenPromiseError(Exception):
    """The core, or what is around it, did what must never happen."""


class Written:
    def __init__(self) -> None:
        self.records: dict[str, RequestRecord] = {}
        self.open: set[str] = set()
        """Requests that are not over."""
        self.lost: set[str] = set()
        """Requests that were ever given up for lost."""
        self.commands: dict[str, Issued] = {}
        self.under_way: dict[str, dict[str, Issued]] = {}
        """Those that are not over, by host and id."""
        self.hosts: dict[str, Host] = {}
        self._lazy: dict[str, RequestRecord] = {}

    def write(self, record: RequestRecord) -> None:
        request = record.request.id
        former = self.latest(request)
        if former is not None and former.state is not record.state:
            allowed = REQUEST_TRANSITIONS[former.state]
            if record.state not in allowed:
                raise BrokenPromiseError(
                    f"{request} went from {former.state.value} to {record.state.value}"
                )
        if record.state in LAZY:
            self._lazy[request] = record
        else:
            self.flush()
            self._put(record)

    def latest(self, request: str) -> RequestRecord | None:
        return self._lazy.get(request) or self.records.get(request)

    def flush(self) -> None:
        """All that was decided is on the disk now."""
        for record in self._lazy.values():
            self._put(record)
        self._lazy.clear()

    def lose(self) -> None:
        """Whoever was about to write it has died."""
        self._lazy.clear()

    def _put(self, record: RequestRecord) -> None:
        self.records[record.request.id] = record
        if record.state is RequestState.LOST:
            self.lost.add(record.request.id)
        if record.state in REQUEST_OVER:
            self.open.discard(record.request.id)
        else:
            self.open.add(record.request.id)

    def issue(self, issued: Issued) -> None:
        self.flush()
        self.commands[issued.id] = issued
        self.under_way.setdefault(issued.host, {})[issued.id] = issued

    def over(self, issued: Issued, result: Told) -> None:
        issued.result = result
        self.under_way[issued.host].pop(issued.id, None)

    def not_settled(self) -> list[RequestRecord]:
        """Requests that are thought lost. A host may have told how one ended just before the
        manager died that was to write it down."""
        records = [self.records[request] for request in sorted(self.lost)]
        return [record for record in records if record.state is RequestState.LOST]

    def remembered(self) -> list[RequestRecord]:
        """What a manager that starts has to know: in the order in which it came."""
        records = [self.records[request] for request in self.open]
        return sorted(records, key=lambda record: (record.request.submitted, record.request.id))
