"""Commands of the agent's own, which managers do not hear of: those that carry out the jobs of a
bait."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from encamp.agent.commands.caretaker import Caretaker
from encamp.agent.commands.directory import Request, is_own
from encamp.agent.commands.intake import LONGEST_TIMEOUT, Intake
from encamp.agent.commands.records import Records
from encamp.agent.commands.tracked import Tracked
from encamp.bus.messages import Claim
from encamp.model.errors import EncampError
from encamp.model.property import Value

LOG = logging.getLogger(__name__)


class OwnCommands:
    def __init__(self, records: Records, caretaker: Caretaker, intake: Intake) -> None:
        self._records = records
        self._caretaker = caretaker
        self._tracked = caretaker.tracked
        self._intake = intake
        self._told: Callable[[Tracked], None] | None = None

    def prepare(self) -> None:
        """There may be something to do soon."""
        self._intake.prepare()

    def directory(self, id: str) -> Path:
        """Where a command will be kept, and what it is to find there."""
        return self._records.directory(id).path

    async def begin(
        self,
        claim: Claim,
        plugin: str,
        arguments: dict[str, Value],
        timeout: float = LONGEST_TIMEOUT,
    ) -> None:
        """Begin a command that makes a machine, and give it so many seconds. An error says that
        there is no room for the machine, or that the command could not be written down."""
        await self._intake.claim(claim)
        try:
            await self.begin_without_room(claim.id, claim.owner, plugin, arguments, timeout)
        except EncampError:
            self._intake.claims.release(claim.id)
            raise

    async def begin_without_room(
        self,
        id: str,
        issuer: str,
        plugin: str,
        arguments: dict[str, Value],
        timeout: float = LONGEST_TIMEOUT,
    ) -> None:
        """Begin one that makes none."""
        assert is_own(id)
        self.prepare()
        request = Request(
            id=id,
            name=plugin.partition(":")[0].rpartition(".")[2],
            arguments=arguments,
            issuer=issuer,
            timeout=timeout,
            received=time.time(),
            plugin=plugin,
            internal=True,
        )
        await self._intake.take(request)

    async def cancel(self, id: str) -> None:
        if (tracked := self._tracked.get(id)) is not None:
            await self._intake.stop(tracked)

    def tell(self, told: Callable[[Tracked], None]) -> None:
        """Have somebody told of each that gets on or is over, those of former agents first. Until
        then they are kept."""
        self._told = told
        for id, tracked in list(self._tracked.items()):
            if is_own(id):
                self.got_on(tracked)

    def got_on(self, tracked: Tracked) -> None:
        if self._told is None or tracked.settled:
            return
        try:
            self._told(tracked)
        except Exception:
            LOG.exception("What became of command %s is not known.", tracked.directory.id)
        if tracked.is_over():
            tracked.settled = True
            self._caretaker.settle(tracked)
            self._intake.claims.forget()
