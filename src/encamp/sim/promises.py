"""What must be true of a site at every moment, and what when all is over, whatever goes wrong."""

from __future__ import annotations

from collections.abc import Iterable

from encamp.core.happenings import TimePassed
from encamp.model.request import (
    PLACED,
    REQUEST_OVER,
    Cause,
    PartState,
    RequestRecord,
    RequestState,
)
from encamp.sim.faults import Saboteur
from encamp.sim.host import SimulatedHost
from encamp.sim.manager import SimulatedManager
from encamp.sim.said import Execute
from encamp.sim.simulation import Simulation
from encamp.sim.written import BrokenPromiseError


class Promises:
    def __init__(self, simulation: Simulation, saboteur: Saboteur) -> None:
        self._simulation = simulation
        self._saboteur = saboteur
        self._filled: dict[str, int] = {}
        """What was looked at of each host."""

    # ── at every moment ──────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        """Of the hosts, whenever something has happened."""
        self._no_host_is_overfull()
        if self._simulation.tally.began_last:
            self._nothing_begins_twice()

    def check_manager(self, manager: SimulatedManager) -> None:
        """Of the manager, whenever it has decided something."""
        records = list(manager.core.placement.records.values())
        self._nothing_is_promised_twice(records)
        self._every_wait_has_a_reason(records)

    def _no_host_is_overfull(self) -> None:
        overcommit = self._simulation.compared.policy.overcommit
        for host in self._simulation.hosts.values():
            if self._filled.get(host.name) == host.filled:
                continue
            self._filled[host.name] = host.filled
            used, kind = host.used(), host.kind
            if used.memory > kind.memory or used.disk > kind.disk:
                raise BrokenPromiseError(f"{host.name} has promised more than it has: {used}")
            # Idle ones do nothing, and give way.
            machines = host.machines.values()
            cpus = sum(machine.size.cpus for machine in machines if not machine.idle)
            if cpus > kind.cpus * overcommit:
                raise BrokenPromiseError(
                    f"the machines on {host.name} have {cpus} processors of {kind.cpus}"
                )
            _every_machine_is_somebodys(host)

    def _nothing_begins_twice(self) -> None:
        tally = self._simulation.tally
        requests, tally.began_last = tally.began_last, []
        for request in requests:
            commands = tally.beginnings[request]
            attempts = {command.rpartition(".")[2] for command in commands}
            record = self._simulation.written.latest(request)
            lost = record.lost if record is not None else 0
            if len(attempts) > 1 + lost:
                raise BrokenPromiseError(
                    f"{request} was begun {len(attempts)} times, and lost {lost} times"
                )

    def _nothing_is_promised_twice(self, records: Iterable[RequestRecord]) -> None:
        """By what the manager has decided, whatever hosts make of it."""
        policy = self._simulation.compared.policy
        cpus: dict[str, int] = {}
        memory: dict[str, int] = {}
        for record in records:
            if record.state not in PLACED:
                continue
            for part in record.parts:
                if part.state is not PartState.OVER:
                    size = record.request.size
                    cpus[part.host] = cpus.get(part.host, 0) + size.cpus
                    memory[part.host] = memory.get(part.host, 0) + size.memory
        for host in cpus:
            kind = self._simulation.hosts[host].kind
            has = kind.memory if kind.claims is None else kind.claims
            if cpus[host] > kind.cpus * policy.overcommit or memory[host] > has:
                raise BrokenPromiseError(
                    f"{host} was given {cpus[host]} processors and {memory[host]} bytes"
                )

    def _every_wait_has_a_reason(self, records: Iterable[RequestRecord]) -> None:
        for record in records:
            if record.state is RequestState.WAITING and record.reason.cause is Cause.NONE:
                raise BrokenPromiseError(f"{record.request.id} waits for no reason")

    def check_answers(self) -> None:
        """Whoever asks why is told, in a sentence."""
        manager = self._simulation.manager
        if manager is None:
            return
        now = self._simulation.clock.now
        for request, record in manager.core.placement.records.items():
            found = manager.core.placement.why(request, now)
            if found.state == RequestState.WAITING.value and not found.reason.sentence:
                raise BrokenPromiseError(f"nobody can say why {request} waits")
            if record.state in REQUEST_OVER:
                raise BrokenPromiseError(f"{request} is over, and still thought of")

    # ── when all is over ─────────────────────────────────────────────────────────────────────────

    def check_end(self) -> None:
        simulation = self._simulation
        for job in simulation.jobs:
            record = simulation.written.records.get(job)
            if record is not None:
                self._ended_well(record)
            elif job not in simulation.refused:
                raise BrokenPromiseError(f"{job} is not known to anybody any more")
        for request, record in simulation.written.records.items():
            if request not in simulation.jobs:
                self._stood(record)
        _none(simulation.written.plans, "triggers are not done with")
        for job, why in simulation.refused.items():
            raise BrokenPromiseError(f"{job} was refused: {why}")
        self._nothing_is_left()

    def _ended_well(self, record: RequestRecord) -> None:
        request = record.request.id
        if record.state not in REQUEST_OVER:
            raise BrokenPromiseError(f"{request} is still {record.state.value}")
        tally = self._simulation.tally
        beginnings = set(tally.beginnings.get(request, ()))
        endings = set(tally.endings.get(request, ()))
        last = {command for command in endings if command.endswith(f".{record.attempt}")}
        whole = len(last) == record.request.count
        if record.request.job is None:
            self._stood(record)
            return
        if record.state is RequestState.DONE and not (whole and record.exit_code == 0):
            raise BrokenPromiseError(
                f"{request} is done with exit code {record.exit_code}, and {len(last)} of"
                f" {record.request.count} commands were"
            )
        if record.state is RequestState.CANCELLED and not self._wanted(record):
            raise BrokenPromiseError(f"{request} was cancelled, and nobody wanted that")
        tries = self._simulation.compared.policy.tries
        enough = bool(beginnings) or record.failures + 1 >= tries
        enough = enough or request in self._simulation.written.lost
        if record.state is RequestState.FAILED and (whole or not enough):
            raise BrokenPromiseError(f"{request} failed: {record.reason.sentence}")
        if record.state is RequestState.LOST:
            hosts = {part.host for part in record.parts}
            if whole and not hosts & self._saboteur.gone:
                raise BrokenPromiseError(f"{request} is thought lost, and was done")

    def _stood(self, record: RequestRecord) -> None:
        """Machines that were wanted for themselves, until somebody wants them to end."""
        fine = (RequestState.DONE, RequestState.CANCELLED, RequestState.LOST, RequestState.FAILED)
        if record.state not in fine:
            raise BrokenPromiseError(f"{record.request.id} is {record.state.value}")

    def _wanted(self, record: RequestRecord) -> bool:
        return self._simulation.jobs[record.request.id].cancelled is not None

    def _nothing_is_left(self) -> None:
        simulation = self._simulation
        manager = simulation.manager
        assert manager is not None
        manager.happened(TimePassed())
        _none(manager.core.placement.records, "the manager still thinks of")
        for host in simulation.hosts.values():
            if host.name in self._saboteur.gone:
                continue
            _none(host.machines, f"{host.name} still has machines")
            _none(host.live_claims(), f"{host.name} still keeps promises")
            _none(host.open, f"{host.name} has not told of")
            _none(
                simulation.written.under_way.get(host.name, ()),
                f"the manager has not heard from {host.name} of",
            )


def _every_machine_is_somebodys(host: SimulatedHost) -> None:
    """Each is idle, or being ended, or has one command that it was made for, or taken for."""
    users: dict[str, list[Execute]] = {}
    for carried in host.commands.values():
        result = carried.result
        if carried.machine and (result is None or result.standing):
            users.setdefault(carried.machine, []).append(carried.execute)
    for machine in host.machines.values():
        used = users.get(machine.id, [])
        if not used and not machine.idle and machine.id not in host.going:
            raise BrokenPromiseError(f"machine {machine.id} on {host.name} is nobody's")
        if len(used) > (0 if machine.idle else 1):
            raise BrokenPromiseError(f"machine {machine.id} on {host.name} is used twice")
        if any(execute.owner != machine.owner for execute in used):
            raise BrokenPromiseError(f"machine {machine.id} on {host.name} is somebody else's")


def _none(left: Iterable[str], what: str) -> None:
    names = sorted(left)
    if names:
        raise BrokenPromiseError(f"{what} {', '.join(names[:5])}")
