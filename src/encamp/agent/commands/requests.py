"""Commands of requests: making one of a request's machines and running its job in it, and running
something in a machine that is there. Managers issue them, for a machine's owner.

All that needs the agent's rights is opened first; then the process becomes the owner's.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated, Any

from encamp.agent.commands.plugin import Context, command
from encamp.model.errors import EncampError
from encamp.model.property import Value
from encamp.model.request import PartResult

if TYPE_CHECKING:
    from encamp.agent.commands.ground import Ground
    from encamp.agent.keeper import Keeper
    from encamp.model.environment import Environment
    from encamp.model.job import MachineRequest

LONGEST = 366 * 86400.0
"""Seconds. A job's own time limit is its own business."""

Ticket = Annotated[str, "the digest of the secret that clients show"]


@command(timeout=LONGEST, internal=True, claimed=True)
def run(
    context: Context,
    *,
    request: Annotated[dict[str, Value], "what was asked for"],
    number: Annotated[int, "which of its machines this is"],
    ticket: Ticket,
) -> Coroutine[Any, Any, PartResult]:
    """Make a machine of a request, and run its job in it. Managers do this for its owner."""
    import msgspec

    from encamp.agent.commands.ground import Ground
    from encamp.agent.commands.part import Part, machine_of, refused, run_part
    from encamp.model.request import Request

    wanted = msgspec.convert(request, Request)
    ground = Ground(context, wanted.owner, keep=wanted.detached and wanted.job is not None)
    part = Part(ground, own=wanted.own)
    try:
        machine = machine_of(wanted, number)
        environment = ground.environment(wanted)
        keeper, machine = _taken(ground, machine, environment)
    except (EncampError, OSError) as error:
        return refused(part, error)
    return run_part(part, keeper, environment, wanted, machine, ticket)


@command(timeout=LONGEST, internal=True)
def execute(
    context: Context,
    *,
    machine: Annotated[str, "its id"],
    exec: Annotated[dict[str, Value], "what to run in it, and files to copy"],
    ticket: Ticket,
    owner: Annotated[str, "whose it is; empty: whoever has it"] = "",
) -> Coroutine[Any, Any, PartResult]:
    """Run a command in a machine of this host. Managers do this for its owner."""
    import msgspec

    from encamp.agent.commands.ground import Ground
    from encamp.agent.commands.part import Part, refused, run_in_machine
    from encamp.agent.owned import identified
    from encamp.agent.owners import account
    from encamp.door.questions import Exec
    from encamp.home import user_name

    wanted = msgspec.convert(exec, Exec)
    uid, found = identified(context.home, machine, account(owner).pw_uid if owner else None)
    ground = Ground(context, user_name(uid))
    part = Part(ground)
    try:
        keeper = ground.take()
    except (EncampError, OSError) as error:
        return refused(part, error)
    return run_in_machine(part, keeper, found, wanted, ticket)


def _taken(
    ground: Ground, machine: MachineRequest, environment: Environment
) -> tuple[Keeper, MachineRequest]:
    """From now on this process is the owner's."""
    if not machine.batch:
        return ground.take(), machine
    from encamp.agent.bait.readying import everybodys_shares, for_batch_jobs

    shares = everybodys_shares()
    return ground.take(), for_batch_jobs(machine, environment, shares)
