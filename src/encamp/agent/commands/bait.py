"""The command of a bait: making a machine for a job of the batch system, and running the job in it.
The agent issues it by itself, for a starter that has come to its door.

All that needs the agent's rights is done first; then the process becomes the job's owner.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated, Any

from encamp.agent.commands.plugin import Context, command
from encamp.model.errors import EncampError
from encamp.model.property import Value

if TYPE_CHECKING:
    from encamp.agent.bait.errand import Carried

LONGEST = 366 * 86400.0
"""Seconds. A job's own time limit is the batch system's business."""

PLUGIN = "encamp.agent.commands.bait:run"
HOLD = "encamp.agent.commands.bait:hold"


@command(timeout=LONGEST, internal=True, claimed=True)
def run(
    context: Context, *, errand: Annotated[dict[str, Value], "whose job, and what it gets"]
) -> Coroutine[Any, Any, Carried]:
    """Run a job of the batch system in a machine."""
    from encamp.agent.bait.carrying import Carrying
    from encamp.agent.bait.ground import Ground
    from encamp.agent.bait.handing import take_over

    ground = Ground(context, errand)
    # Last: those who were made before need not have the job's files open.
    handed = take_over(ground.directory.path)
    ground.take()

    async def carry() -> Carried:
        try:
            keeper = ground.keeper()
        except EncampError as error:
            from encamp.agent.bait.frames import again

            handed.connection.send(again(1.0, str(error)))
            raise
        return await Carrying(
            ground.errand,
            handed,
            keeper,
            ground.environment,
            ground.telling,
            ground.groups,
            ground.fetching,
        ).run()

    return carry()


@command(timeout=LONGEST, internal=True, claimed=True)
def hold(
    context: Context,
    *,
    errand: Annotated[dict[str, Value], "whose step, and what it gets"],
    directory: Annotated[str, "where its tasks begin"],
) -> Coroutine[Any, Any, Carried]:
    """Keep a machine for the tasks of a step of a batch system's job."""
    from encamp.agent.bait.ground import Ground
    from encamp.agent.bait.hosting import Hosting

    ground = Ground(context, errand)
    ground.take()

    async def host() -> Carried:
        return await Hosting(ground, directory).run()

    return host()
