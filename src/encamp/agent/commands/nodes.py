"""Commands about worker nodes: machines of this host that join its batch system, and leave it."""

from __future__ import annotations

from typing import Annotated

from encamp.agent.commands.plugin import Context, command
from encamp.model.property import Value


@command(timeout=900)
async def start(
    context: Context,
    *,
    environment: Annotated[str, "an environment that says which batch system it enrols in"],
    name: Annotated[str | None, "the node's name; if not given, made from its address"] = None,
    cpus: Annotated[int | None, "number of processors"] = None,
    memory: Annotated[str | None, "memory, such as 2G"] = None,
    disk: Annotated[str | None, "a disk of its own for what it writes, such as 10G"] = None,
    idle: Annotated[float | None, "it leaves after so many seconds without a job"] = None,
    lease: Annotated[float | None, "it takes no more jobs after so many seconds"] = None,
) -> dict[str, Value]:
    """Start a machine that joins the batch system of this host as a worker node. Returns the
    machine."""
    from encamp.agent.commands.lines import Lines
    from encamp.agent.commands.machines import _described, _keeper, _request
    from encamp.agent.nodes.joining import start_node

    request = _request(environment, name, cpus, memory, disk, None, None)
    machine = await start_node(_keeper(context), request, Lines(context), idle=idle, lease=lease)
    return _described(machine)


@command(timeout=60)
def leave(
    context: Context,
    *,
    node: Annotated[str, "its name, or the id of its machine"],
    reason: Annotated[str, "why"] = "somebody asked for it",
) -> None:
    """Have a worker node leave the batch system: no more jobs are sent to it, and when the last has
    ended its machine ends."""
    import time

    from encamp.agent.journal import Journal
    from encamp.agent.nodes.keeping import ask_to_leave

    journal = Journal(context.home)
    ask_to_leave(journal, journal.find(node), reason, time.time())
