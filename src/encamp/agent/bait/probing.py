"""The agent's own trial of an environment that fails for one owner: a machine of root's is made,
which no owner can disturb, and destroyed at once. So one owner alone cannot have an environment
left alone for others, nor the bait closed."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import msgspec

from encamp.agent.bait.errand import Carried, Fault
from encamp.agent.commands.directory import OWN
from encamp.agent.commands.plugin import Context, command
from encamp.agent.commands.stage import START
from encamp.bus.messages import Claim
from encamp.model.command import CommandState
from encamp.model.errors import Code, EncampError
from encamp.model.property import Value
from encamp.model.size import Size

if TYPE_CHECKING:
    from encamp.agent.bait.failing import Failing
    from encamp.agent.commands.supervising import Commands
    from encamp.agent.commands.tracked import Tracked

PLUGIN = "encamp.agent.bait.probing:probe"
PROBE = f"{OWN}probe."
"""What the ids of these commands begin with."""

LONGEST = 600.0
"""Seconds for one."""
CLAIMED = 120.0
"""Seconds in which it has begun."""
LOOK, LATER = 1.0, 30.0
"""Seconds between two looks at whether one is wanted, and until the next when one could not be
begun."""

SAYS_NOTHING = frozenset(
    {Code.USAGE, Code.NO_ROOM, Code.NOT_PERMITTED, Code.INPUT_MISSING, Code.UNKNOWN_ENVIRONMENT}
)
"""Errors that an environment is not to be blamed for."""

LOG = logging.getLogger(__name__)


@command(timeout=LONGEST, internal=True, claimed=True)
async def probe(
    context: Context,
    *,
    environment: Annotated[str, "what fails for one owner"],
    size: Annotated[dict[str, Value], "of the machine"],
    shares: Annotated[list[Value], "directories that all jobs find"],
) -> Carried:
    """Make a machine of an environment and destroy it: does it come up?"""
    from encamp.agent.bait.choosing import choose_shares
    from encamp.agent.caller import caller
    from encamp.agent.commands.lines import Lines
    from encamp.agent.commands.records import Records
    from encamp.agent.commands.stage import Telling
    from encamp.agent.keeper import Keeper
    from encamp.agent.phases import Phases
    from encamp.describe.environments import find_environment
    from encamp.describe.settings import SettingsError
    from encamp.model.job import MachineRequest

    wanted, found = msgspec.convert(size, Size), find_environment(environment)
    taken = [share.path for share in found.shares]
    request = MachineRequest(
        environment=environment,
        owner=caller(),
        cpus=wanted.cpus,
        memory=wanted.memory,
        disk=wanted.disk,
        shares=choose_shares([str(path) for path in shares], "", "", taken),
    )
    telling = Telling(Records(context.home).directory(context.id))
    phases = Phases()
    phases.on_machine = lambda machine: telling.tell(START, machine.id)
    try:
        # What the machines of others are made of.
        keeper = Keeper.open(context.home, shared=None)
        keeper.maker.shielded = True
        live = await keeper.maker.make(
            request,
            found,
            tied=True,
            outlives=False,
            phases=phases,
            progress=Lines(context),
        )
    except EncampError as error:
        says_nothing = error.code in SAYS_NOTHING or isinstance(error, SettingsError)
        fault = None if says_nothing else Fault.UNCLEAR
        return Carried(failure=error.sentence, fault=fault)
    await live.destroy()
    return Carried(came_up=True)


class Probing:
    """One at a time, for what `failing` wants to know. `is_full`: whether there is no room."""

    def __init__(self, commands: Commands, failing: Failing, is_full: Callable[[], bool]) -> None:
        self._commands = commands
        self._failing = failing
        self._is_full = is_full
        self._under_way: set[str] = set()

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK)
            if self._under_way or self._is_full():
                continue
            for environment in self._failing.to_try(time.time())[:1]:
                if not await self._begin(environment):
                    await asyncio.sleep(LATER)

    async def _begin(self, environment: str) -> bool:
        from encamp.describe.environments import find_environment

        id = f"{PROBE}{secrets.token_hex(12)}"
        self._under_way.add(id)
        try:
            found = await asyncio.to_thread(find_environment, environment)
            settings = self._failing.settings
            size = settings.size or found.size
            claim = Claim(id=id, owner="root", environment=environment, size=size, seconds=CLAIMED)
            wanted: dict[str, Value] = {
                "environment": environment,
                "size": msgspec.to_builtins(size),
                "shares": list(settings.shares),
            }
            LOG.info("Does a machine of '%s' come up for the agent itself?", environment)
            await self._commands.own.begin(claim, PLUGIN, wanted, LONGEST)
            self._failing.trying(environment, time.time())
        except Exception as error:
            # Whatever it is: the next may go well.
            self._under_way.discard(id)
            LOG.info("Environment '%s' is not tried now: %s", environment, error)
            return False
        return True

    def got_on(self, tracked: Tracked) -> bool:
        """Told of every command of the agent's own: is it one of these?"""
        id = tracked.directory.id
        if not id.startswith(PROBE):
            return False
        if tracked.result is None:
            self._under_way.add(id)
            return True
        self._under_way.discard(id)
        request, result = tracked.directory.read_request(), tracked.result
        carried = Carried()
        if result.state is CommandState.TIMED_OUT:
            if result.stage.phase != START:
                return True  # Getting an image may take long, and says nothing.
            carried = Carried(failure=result.reason or "It took too long.", fault=Fault.UNCLEAR)
        elif result.value is not None:
            with suppress(msgspec.ValidationError):
                carried = msgspec.convert(result.value, Carried)
        if request is not None and (carried.came_up or carried.fault is not None):
            environment = str(request.arguments.get("environment"))
            self._failing.tried(environment, carried.failure, time.time())
        return True
