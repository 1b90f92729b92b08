"""A machine that this process is dealing with: its record, process and guest channel together."""

from __future__ import annotations

from collections.abc import Awaitable

from encamp.agent.journal import ClientLock, Journal
from encamp.agent.session import Port
from encamp.guest.channel import Channel
from encamp.machines.qemu import Engine
from encamp.model.machine import Machine


class Live:
    def __init__(
        self,
        journal: Journal,
        machine: Machine,
        engine: Engine,
        channel: Channel,
        port: Port,
        client: ClientLock,
        settings: list[Awaitable[None]],
    ) -> None:
        self.journal = journal
        self.machine = machine
        self.engine = engine
        self.channel = channel
        self.port = port
        self.client = client
        self._settings = settings

    async def ready(self) -> None:
        """Wait until the guest has answered, and has done what it was told at first."""
        await self.channel.welcome()
        for setting in self._settings:
            await setting

    def record(self, machine: Machine) -> None:
        self.journal.write(machine)
        self.machine = machine

    async def hang_up(self) -> None:
        """Leave the guest; another process may take up the conversation."""
        await self.channel.close()
        self.port.release()

    async def let_go(self) -> None:
        """From now on the machine is on its own."""
        await self.hang_up()
        self.client.release()
        self.engine.process.close()

    async def destroy(self) -> None:
        """End the machine at once and leave nothing of it."""
        await self.engine.process.kill()
        await self.hang_up()
        self.engine.process.close()
        self.engine.directory.remove()
        self.client.release()
