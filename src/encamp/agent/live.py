"""A machine that this process is dealing with: its record, process and guest channel together."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from contextlib import suppress

from encamp.agent.journal import ClientLock, Journal, ended_meanwhile
from encamp.agent.session import Port
from encamp.guest.channel import Channel
from encamp.machines.engine import Engine
from encamp.machines.share_server import while_served
from encamp.model.errors import EncampError
from encamp.model.machine import Machine, Move, State


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
        self._let_go = False

    async def ready(self) -> None:
        """Wait until the guest has answered, and has done what it was told at first."""
        if self.machine.shares:
            await while_served(self.engine.directory, self._settle())
        else:
            await self._settle()

    async def _settle(self) -> None:
        await self.channel.welcome()
        for setting in self._settings:
            await setting

    def record(self, machine: Machine) -> None:
        """Write down what has changed. Until the machine runs that is mere news, and whoever ends
        it meanwhile has the last word."""
        self.machine = machine
        if machine.state is not State.STARTING:
            self.journal.write(machine)
            return
        with suppress(EncampError), self.journal.moving(machine.id):
            if self.journal.ended(machine.id) is None:
                self.journal.write(machine)

    async def activate(self, reason: str) -> None:
        """The machine is ready for work, unless somebody has ended it on its way there."""
        async with self.journal.settled(self.machine.id):
            ended = self.journal.ended(self.machine.id)
            if ended is not None:
                raise ended_meanwhile(ended)
            self.record(self.machine.moved(Move.ACTIVATE, reason, time.time()))

    async def hang_up(self) -> None:
        """Leave the guest; another process may take up the conversation."""
        await self.channel.close()
        self.port.release()

    async def let_go(self) -> None:
        """From now on the machine is on its own."""
        self._let_go = True
        await self.hang_up()
        self.client.release()
        self.engine.process.close()

    async def fail(self, reason: str) -> None:
        """End the machine; its record and console stay, and tell why."""
        await self._end()
        self.record(self.machine.moved(Move.FAIL, reason, time.time()))
        self.engine.directory.strip()
        self.client.release()

    async def withdraw(self) -> EncampError | None:
        """End a machine that has not become ready; see the journal's `withdraw`."""
        await self._end()
        ended = await self.journal.withdraw(self.machine)
        self.client.release()
        return ended

    async def destroy(self) -> None:
        """End the machine at once and leave nothing of it, unless it was let go."""
        if self._let_go:
            return
        await self._end()
        self.engine.directory.remove()
        self.client.release()

    async def _end(self) -> None:
        await self.engine.process.kill()
        await self.hang_up()
        self.engine.process.close()
