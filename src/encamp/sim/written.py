"""What a simulated manager has written down: all that is left of it when it dies.

What is only waited for is written a moment later than it is decided, as by the real one; whatever
lets something begin waits until all before it is written.
"""

from __future__ import annotations

import msgspec

from encamp.core.actions import InOrder, IssueCommand, PlaceMachines
from encamp.core.triggers.memory import OneTrigger
from encamp.model.host import Host
from encamp.model.request import (
    REQUEST_OVER,
    REQUEST_TRANSITIONS,
    Request,
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


def is_ahead(request: Request) -> bool:
    """Is it for a machine that is to stand ready for a job to come?"""
    return request.job is None and request.reuse


class BrokenPromiseError(Exception):
    """The core, or what is around it, did what must never happen."""


class Plan(msgspec.Struct, frozen=True):
    """What a trigger decided, and how far it has got. Commands and requests have their ids before
    they are issued."""

    action: InOrder
    ids: tuple[tuple[str, ...], ...]
    """Of each thing in the step that is under way."""
    step: int = 0


class Written:
    def __init__(self) -> None:
        self.records: dict[str, RequestRecord] = {}
        self.open: set[str] = set()
        """Requests that are not over;"""
        self.ahead: set[str] = set()
        """those of them that triggers made."""
        self.lost: set[str] = set()
        """Requests that were ever given up for lost."""
        self.commands: dict[str, Issued] = {}
        self.under_way: dict[str, dict[str, Issued]] = {}
        """Those that are not over, by host and id."""
        self.hosts: dict[str, Host] = {}
        self.plans: dict[str, Plan] = {}
        """What is being done about what triggers decided."""
        self.memory: dict[str, OneTrigger] = {}
        """What triggers have to remember."""
        self._numbered = 0
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
            self.ahead.discard(record.request.id)
        else:
            self.open.add(record.request.id)
            if is_ahead(record.request):
                self.ahead.add(record.request.id)

    def issue(self, issued: Issued) -> None:
        self.flush()
        self.commands[issued.id] = issued
        self.under_way.setdefault(issued.host, {})[issued.id] = issued

    def over(self, issued: Issued, result: Told) -> None:
        issued.result = result
        self.under_way[issued.host].pop(issued.id, None)

    def plan(self, action: InOrder) -> str:
        """What is to be done is written; under which key?"""
        [key] = self._ids("plan", 1)
        self.plans[key] = Plan(action, self._ids_of(action, 0))
        return key

    def go_on(self, key: str) -> None:
        """With the next step."""
        plan = self.plans[key]
        step = plan.step + 1
        self.plans[key] = Plan(plan.action, self._ids_of(plan.action, step), step)

    def _ids_of(self, action: InOrder, step: int) -> tuple[tuple[str, ...], ...]:
        found = []
        for one in action.steps[step]:
            if isinstance(one, PlaceMachines):
                found.append(self._ids("ready", one.count))
            else:
                hosts = len(one.hosts) if isinstance(one, IssueCommand) else 0
                found.append(self._ids("command", hosts))
        return tuple(found)

    def _ids(self, what: str, count: int) -> tuple[str, ...]:
        first = self._numbered + 1
        self._numbered += count
        return tuple(f"{what}{number}" for number in range(first, first + count))

    def not_settled(self) -> list[RequestRecord]:
        """Requests that are thought lost. A host may have told how one ended just before the
        manager died that was to write it down."""
        records = [self.records[request] for request in sorted(self.lost)]
        return [record for record in records if record.state is RequestState.LOST]

    def remembered(self) -> list[RequestRecord]:
        """What a manager that starts has to know: in the order in which it came."""
        records = [self.records[request] for request in self.open]
        return sorted(records, key=lambda record: (record.request.submitted, record.request.id))
