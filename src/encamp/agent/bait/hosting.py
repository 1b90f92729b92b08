"""A machine for all tasks of a step on this host: whose it is runs nothing in it, and destroys it
when the last of them has ended. So none of them depends on another."""

from __future__ import annotations

import asyncio
import time

from encamp.agent.bait.errand import Carried
from encamp.agent.bait.frames import Asked
from encamp.agent.bait.ground import Ground
from encamp.agent.bait.housing import Housing, fault_of
from encamp.agent.bait.starter import is_there
from encamp.agent.caller import as_user
from encamp.agent.commands.stage import IMAGE, RUNNING, START
from encamp.agent.phases import Phases
from encamp.machines.engine import Engine
from encamp.model.errors import EncampError
from encamp.progress import Silent

LOOK = 0.1
"""Seconds between two looks at who is in it."""
ALONE, PATIENCE = 10.0, 120.0
"""Seconds for which it waits for tasks that have not come yet, if the first of them is gone, and if
not."""


class Hosting:
    """`directory`: where the tasks of the step begin."""

    def __init__(self, ground: Ground, directory: str) -> None:
        self._ground = ground
        errand = ground.errand
        who = errand.starter
        phases = Phases()
        phases.on_image = lambda: ground.telling.tell(IMAGE)
        phases.on_machine = lambda machine: ground.telling.tell(START, machine.id)
        asked = Asked(system=errand.job.system, arguments=(b"step",), directory=directory)
        user = as_user(who.uid, who.gid, who.groups)
        self._housing = Housing(
            errand, asked, ground.keeper(), ground.environment, user, phases, ground.groups
        )

    async def run(self) -> Carried:
        came_up, fetching = False, self._ground.fetching
        try:
            if fetching is not None:
                self._ground.telling.tell(IMAGE)
                await fetching.done(Silent())
                fetching = None
            async with self._housing.machine(Silent()) as (machine, engine, _):
                came_up = True
                self._ground.telling.tell(RUNNING, machine.id)
                await self._until_left(engine)
        except EncampError as error:
            # A step that is killed takes the machine along, whatever that was doing.
            wanted = is_there(self._ground.errand.starter)
            fault = None
            if wanted and not came_up:
                fault = fault_of(error, fetching=fetching is not None)
            return Carried(came_up=came_up, failure=error.sentence, fault=fault)
        return Carried(came_up=True, began=True, machine=machine.id)

    async def _until_left(self, engine: Engine) -> None:
        """By all tasks of the step; or by those who came, if nobody else does."""
        errand, offer = self._ground.errand, self._housing.offer
        assert offer is not None
        last = time.monotonic()
        while engine.process.alive():
            patience = PATIENCE if is_there(errand.starter) else ALONE
            if offer.inside:
                last = time.monotonic()
            elif time.monotonic() - last >= (patience if offer.came < errand.tasks else 0.0):
                return
            await asyncio.sleep(LOOK)
