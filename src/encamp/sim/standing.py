"""Machines that were wanted for themselves: they stand until they are removed, or have vanished."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from encamp.core.happenings import Happening, Joined, PartMoved, Reported
from encamp.core.step import Core
from encamp.model.host import Presence
from encamp.model.machine import Machine
from encamp.model.request import REQUEST_OVER, UNDER_WAY, PartState, RequestRecord, claim_id
from encamp.sim.world import World
from encamp.sim.written import Issued, Written

AGAIN = 5.0
"""Seconds after which a machine is removed again that is still there."""


class Standing:
    """`end`: tells a host to end a machine, if the host is there."""

    def __init__(
        self,
        core: Core,
        world: World,
        written: Written,
        happened: Callable[[Happening], None],
        end: Callable[[str, str], None],
    ) -> None:
        self._core = core
        self._clock = world.clock
        self._written = written
        self._happened = happened
        self._end = end
        self.alive = True
        self._standing: dict[str, Issued] = {}
        """Commands that are over and whose machines stand, while their requests are not over."""

    def see(self, record: RequestRecord) -> None:
        """A request has got on."""
        if record.request.job is not None:
            return
        for part in record.parts:
            name = claim_id(record.request.id, part.number, record.attempt)
            issued = self._written.commands.get(name)
            if issued is None or issued.result is None or not issued.result.standing:
                continue
            if part.state is PartState.RUNNING and record.state not in REQUEST_OVER:
                self._standing[name] = issued
            else:
                self._standing.pop(name, None)

    def remove(self, issued: Issued) -> None:
        """End a machine that stands, as soon as its host is there; until it is gone."""
        assert issued.result is not None
        state = self._core.picture.hosts.get(issued.host)
        if not self.alive or state is None:
            return
        machine = issued.result.machine
        if state.record.presence is Presence.JOINED and machine not in state.machines:
            self._happened(_vanished(issued, machine))
            return
        self._end(issued.host, machine)
        self._clock.after(AGAIN, self.remove, issued)

    def end_forsaken(self, host: str, machines: Iterable[Machine]) -> None:
        """A host has come, with machines of attempts that were given up while it was away."""
        present = {machine.id for machine in machines}
        for issued in list(self._written.commands.values()):
            result = issued.result
            if issued.host != host or result is None or not result.standing:
                continue
            record = self._written.latest(issued.request)
            assert record is not None
            wanted = record.attempt == issued.attempt and record.state in UNDER_WAY
            if result.machine in present and not wanted:
                self.remove(issued)

    def vanished(self, told: Joined | Reported) -> list[PartMoved]:
        """The machines that stood on a host and are gone, before the core is told."""
        state = self._core.picture.hosts.get(told.name)
        if told.machines is None or not self._standing:
            return []
        before = state.machines if state is not None else {}
        present = {machine.id for machine in told.machines}
        moved = []
        for issued in self._standing.values():
            result = issued.result
            assert result is not None
            gone = result.machine not in present and (
                result.machine in before or isinstance(told, Joined)
            )
            if issued.host == told.name and gone:
                moved.append(_vanished(issued, result.machine))
        return moved


def _vanished(issued: Issued, machine: str) -> PartMoved:
    """A machine that stood is gone."""
    return PartMoved(
        request=issued.request,
        number=issued.number,
        attempt=issued.attempt,
        host=issued.host,
        state=PartState.OVER,
        machine=machine,
        began=True,
    )
