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


@command(timeout=LONGEST, internal=True, claimed=True)
def run(
    context: Context, *, errand: Annotated[dict[str, Value], "whose job, and what it gets"]
) -> Coroutine[Any, Any, Carried]:
    """Run a job of the batch system in a machine."""
    import os
    import signal

    import msgspec

    from encamp.agent import owners
    from encamp.agent.bait.carrying import Carrying
    from encamp.agent.bait.errand import Errand
    from encamp.agent.bait.grouping import Groups
    from encamp.agent.bait.handing import take_over
    from encamp.agent.commands.family import die_with
    from encamp.agent.commands.fetching import Fetching, missing
    from encamp.agent.commands.records import Records
    from encamp.agent.commands.stage import Telling
    from encamp.agent.keeper import Keeper
    from encamp.describe.environments import find_environment
    from encamp.home import SYSTEM_HOME

    # A pipe of the job's that nobody reads is the job's business, and not the end of this process.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    # What a batch system lets a job know it may send to everything that is the job's: this process
    # and its machine, too. The job itself hears it from its starter.
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU):
        signal.signal(number, signal.SIG_IGN)
    wanted = msgspec.convert(errand, Errand)
    starter = wanted.starter
    directory = Records(context.home).directory(context.id)
    telling = Telling(directory)
    is_ours = starter.uid == os.geteuid()
    environment = find_environment(wanted.environment)
    fetching = None
    if not is_ours and missing(context.home, environment):
        fetching = Fetching(context.home, environment)
    groups = Groups(starter.pid, starter.uid)
    # Last: those who were made before need not have the job's files open.
    handed = take_over(directory.path)
    parent = os.getppid()
    home = owners.become(
        owners.by_number(starter.uid), context.home, gid=starter.gid, groups=starter.groups
    )
    # Whoever changes its user is no longer told of its parent's death.
    die_with(parent)

    async def carry() -> Carried:
        try:
            keeper = Keeper.open(home, SYSTEM_HOME if is_ours else context.home.root)
        except EncampError as error:
            from encamp.agent.bait.frames import again

            handed.connection.send(again(1.0, str(error)))
            raise
        return await Carrying(wanted, handed, keeper, environment, telling, groups, fetching).run()

    return carry()
