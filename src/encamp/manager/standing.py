"""Which requests are not over: whose they are, how far, and with which machines. Counted as they
come and go, so that looking costs nothing however many wait."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import msgspec

from encamp.manager.parts import PartId
from encamp.model.request import (
    REQUEST_OVER,
    PartState,
    Request,
    RequestRecord,
    RequestState,
)


class Open(msgspec.Struct, gc=False):
    owner: str
    state: RequestState
    machines: tuple[tuple[str, str], ...] = ()
    """Hosts, and the machines there."""


class Standing:
    def __init__(self) -> None:
        self._open: dict[str, Open] = {}
        """The oldest first."""
        self._of: dict[str, dict[str, None]] = {}
        """Of each owner, their ids, the oldest first."""
        self._in: Counter[RequestState] = Counter()
        self._made_for: dict[tuple[str, str], str] = {}
        """By host and machine: what one host says of a machine is no word about another's."""
        self._on: dict[str, dict[str, PartId]] = {}
        """Of each host, the parts whose machines stand there, by these."""

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, request: Request, state: RequestState = RequestState.WAITING) -> None:
        """One more."""
        if request.id not in self._open:
            self._open[request.id] = Open(request.owner, state)
            self._of.setdefault(request.owner, {})[request.id] = None
            self._in[state] += 1

    def moved(self, record: RequestRecord) -> None:
        request = record.request
        if record.state in REQUEST_OVER:
            self.closed(request.id)
            return
        self.opened(request, record.state)
        one = self._open[request.id]
        self._in[one.state] -= 1
        self._in[record.state] += 1
        one.state = record.state
        machines = tuple((part.host, part.machine) for part in record.parts if part.machine)
        if machines != one.machines:
            self._forget_machines(one)
            one.machines = machines
            self._made_for.update((one, request.id) for one in machines)
        if request.job is None:
            self._stand(record)

    def closed(self, request: str) -> None:
        one = self._open.pop(request, None)
        if one is None:
            return
        of_owner = self._of[one.owner]
        del of_owner[request]
        if not of_owner:
            del self._of[one.owner]
        self._in[one.state] -= 1
        self._forget_machines(one)

    def _stand(self, record: RequestRecord) -> None:
        for part in record.parts:
            if part.machine and part.state is PartState.RUNNING:
                name = PartId(record.request.id, part.number, record.attempt)
                self._on.setdefault(part.host, {})[part.machine] = name

    def _forget_machines(self, one: Open) -> None:
        for host, machine in one.machines:
            self._made_for.pop((host, machine), None)
            there = self._on.get(host, {})
            there.pop(machine, None)
            if not there:
                self._on.pop(host, None)

    def on(self, host: str) -> dict[str, PartId]:
        """The parts whose machines stand on a host, wanted for themselves."""
        return self._on.get(host, {})

    def of(self, owner: str) -> int:
        """How many somebody has."""
        return len(self._of.get(owner, ()))

    def counts(self) -> dict[str, int]:
        """How many are in each state."""
        return {state.value: count for state, count in self._in.items() if count}

    def latest(self, owner: str, most: int) -> list[str]:
        """The ids of somebody's, or everybody's, the latest first."""
        found = self._of.get(owner, {}) if owner else self._open
        return list(islice(reversed(found), max(0, most)))

    def owner_of_machine(self, host: str, machine: str) -> str | None:
        """Whose request a machine was made for."""
        request = self._made_for.get((host, machine))
        return None if request is None else self._open[request].owner

    def machines_of(self, owner: str) -> list[tuple[str, str, str]]:
        """Requests of somebody's, the hosts that have made machines for them, and those."""
        return [
            (request, host, machine)
            for (host, machine), request in self._made_for.items()
            if self._open[request].owner == owner
        ]

    def made_for(self, host: str, machine: str) -> str | None:
        """The request that a machine was made for."""
        return self._made_for.get((host, machine))
