"""Slurm's power saving on a site: nodes are made on whichever of its hosts has most room."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from encamp.cli.asking import asked
from encamp.cli.sending import issue
from encamp.describe.environments import find_environment
from encamp.door.questions import AskHosts, IssueCommand
from encamp.model.errors import Code, EncampError
from encamp.model.host import Host, Presence
from encamp.model.property import Value

FOR_EVER = 3.0e9
"""Seconds that such a node may be idle: when it is to end is Slurm's business."""


def start_nodes(wanted: Mapping[str, str], on: Sequence[str]) -> None:
    """`wanted`: the environment of each node."""
    hosts = _hosts(on)
    free = {host.name: _free(host) for host in hosts}
    for name, environment in wanted.items():
        chosen = max(free, key=lambda host: free[host])
        free[chosen] -= find_environment(environment).size.memory
        issue(
            IssueCommand(
                hosts=(chosen,),
                name="node.start",
                arguments={"environment": environment, "name": name, "idle": FOR_EVER},
            )
        )


def end_nodes(names: Collection[str], on: Sequence[str]) -> None:
    for host in _hosts(on):
        for machine in host.machines:
            if machine.node is not None and machine.name in names:
                arguments: dict[str, Value] = {"node": machine.id, "reason": "Slurm asked for it"}
                issue(IssueCommand(hosts=(host.name,), name="node.leave", arguments=arguments))


def _hosts(on: Sequence[str]) -> list[Host]:
    every = asked(AskHosts(hosts=tuple(on)), Host)
    found = [host for host in every if host.presence is Presence.JOINED]
    if not found:
        raise EncampError(
            Code.NO_ROOM,
            f"None of the hosts {' '.join(on)} is there to have worker nodes.",
            "'encamp hosts' lists those of the site.",
            transient=True,
        )
    return found


def _free(host: Host) -> float:
    reading = host.readings.get("memory_free")
    value = reading.value if reading is not None else None
    return float(value) if isinstance(value, int | float) else 0.0
