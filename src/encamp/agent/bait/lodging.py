"""A machine that a job has already, and that the tasks of its steps on the same host run in, too.

Whoever has made it is the host of the others: at a socket beside the machine's record, which is
called after the host's own record, they come to speak with the guest. So nobody gets into a machine
that has become another job's meanwhile.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from encamp.agent.bait.errand import Errand
from encamp.agent.keeper import Keeper
from encamp.agent.phases import Phases
from encamp.agent.session import answered, hello
from encamp.guest.channel import Channel
from encamp.guest.relay import Relay
from encamp.machines import drivers, sockets
from encamp.machines.directory import MachineDirectory
from encamp.machines.engine import Engine
from encamp.model.errors import Code, EncampError
from encamp.model.machine import Machine, Phase
from encamp.progress import Progress

MOST = 128
"""Who may wait at a time to be let in."""


class Offer:
    """Of a machine that is ours. Others may join until it is withdrawn."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    @property
    def inside(self) -> int:
        """How many are in it."""
        return len(self._relay.clients)

    @property
    def came(self) -> int:
        """How many have come so far."""
        return self._relay.came

    def withdraw(self) -> bool:
        """Nobody joins from now on. False: somebody is in it still, and will lose it."""
        self._relay.stop_listening()
        self._relay.dismiss("what the machine was made for has ended")
        return not self._relay.clients


@contextmanager
def offered(
    directory: MachineDirectory, errand: Errand, machine: Machine, channel: Channel
) -> Iterator[Offer]:
    """To tasks of the same job. Those who are in the machine afterwards lose it."""
    listener = sockets.listen(directory.path, errand.record)
    listener.listen(MOST)
    relay = Relay(channel, listener, bytes.fromhex(machine.id), MOST)
    try:
        yield Offer(relay)
    finally:
        relay.close()
        with suppress(OSError):
            (directory.path / errand.record).unlink()


class Lodging:
    """For one task, in a process of its user's."""

    cpu_seconds: float | None = None
    peak_memory: int | None = None
    """What the machine uses is told by whoever has made it."""
    cancelled = False

    def __init__(self, errand: Errand, keeper: Keeper, phases: Phases) -> None:
        self._errand = errand
        self._keeper = keeper
        self._phases = phases
        self.first: Callable[[Channel, Machine], None] = lambda channel, machine: None
        """As a machine of its own would call it."""

    @asynccontextmanager
    async def machine(self, progress: Progress) -> AsyncIterator[tuple[Machine, Engine, Channel]]:
        """Whatever becomes of the task, the machine stays."""
        directory = self._keeper.journal.directory(self._errand.machine)
        machine = self._keeper.journal.read(self._errand.machine)
        engine = drivers.find(directory)
        if machine is None or engine is None:
            raise EncampError(
                Code.MACHINE_LOST, "The machine of its job has just ended.", transient=True
            )
        try:
            with self._phases.time(Phase.START, "joined"):
                self._phases.on_machine(machine)
                connection = sockets.connect(directory.path, self._errand.host)
                channel = await Channel.open(connection, hello(machine), fresh=True)
            async with channel:
                await answered(machine, engine, channel)
                self.first(channel, machine)
                yield machine, engine, channel
        finally:
            engine.process.close()
