"""Many agents in one process, for a manager to have many hosts.

    python -m bench.swarm FIRST COUNT SIZE

Each has a connection and a name of its own and converses as every agent does. What differs is what
they have to tell: no machines, no commands under way, and in place of the host's properties a
single one of a given size, which changes all the time.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
import uuid

from bench.site import name_of
from encamp import __version__
from encamp.agent.commands import offers
from encamp.agent.conversation import Conversation
from encamp.bus.messages import Claim, CommandNews, Execute, Hello, JobsWanted
from encamp.bus.opening import open_bus
from encamp.cli.daemons import run_daemon
from encamp.describe.site_file import load_site
from encamp.model.batch_record import BatchRecord
from encamp.model.machine import Machine
from encamp.model.property import PropertyDefinition, Reading
from encamp.model.site import EVERYBODY, Site

PROPERTY = PropertyDefinition(name="blob", command="blob", ticks=0)
"""Reported only when asked for."""
OFFERED = offers.look().definitions
AT_ONCE = 20
"""Connections a process opens at a time."""


class Client:
    """What one of them knows."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self._size = size
        self._instance = uuid.uuid4().hex
        self._counter = itertools.count()

    async def live(self, site: Site, gate: asyncio.Semaphore) -> None:
        conversation = Conversation(self.name, self._instance, self)
        bus = open_bus(site, self.name, (EVERYBODY,), conversation.take)
        await gate.acquire()
        async with bus:
            gate.release()
            await conversation.run(bus)

    def hello(self) -> Hello:
        return Hello(
            instance=self._instance,
            home="swarm",
            version=__version__,
            time=time.time(),
            properties=(PROPERTY,),
            commands=OFFERED,
        )

    def readings(self) -> dict[str, Reading]:
        """Other characters each time."""
        value = str(next(self._counter)).ljust(self._size, "x")
        return {PROPERTY.name: Reading(value, at=time.time())}

    async def read(self, properties: tuple[str, ...]) -> dict[str, Reading]:
        return self.readings()

    async def jobs(self, wanted: JobsWanted) -> tuple[BatchRecord, ...]:
        return ()

    def machines(self) -> tuple[Machine, ...]:
        return ()

    async def look(self) -> bool:
        return False

    def news(self) -> tuple[CommandNews, ...]:
        return ()

    def taken(self, outputs: dict[str, int], told: tuple[CommandNews, ...]) -> None: ...

    def start_again(self) -> None: ...

    async def execute(self, message: Execute) -> None: ...

    async def cancel(self, command_id: str) -> None: ...

    async def claim(self, message: Claim) -> None: ...

    def release(self, claim_id: str) -> None: ...


async def swarm(first: int, count: int, size: int) -> None:
    site = load_site()
    assert site is not None
    gate = asyncio.Semaphore(AT_ONCE)
    async with asyncio.TaskGroup() as tasks:
        for number in range(first, first + count):
            tasks.create_task(Client(name_of(number), size).live(site, gate))


if __name__ == "__main__":
    run_daemon(lambda: swarm(*map(int, sys.argv[1:])), verbose=False)
