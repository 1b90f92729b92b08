"""`encamp batch start`, `nodes`, `leave`, `offer`, `names`: worker nodes on this host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from encamp.model.errors import Code, EncampError

if TYPE_CHECKING:
    from encamp.agent.journal import Journal
    from encamp.model.batch import BatchSettings
    from encamp.model.machine import Machine
    from encamp.progress import Progress

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
WAIT = 2.0
"""Seconds between two looks at a node that is waited for."""


def register(group: typer.Typer) -> None:
    for command in (start, nodes, leave, offer, names):
        group.command()(command)


def start(
    environment: Annotated[
        str, typer.Argument(metavar="ENVIRONMENT", help="One that enrols in the batch system.")
    ],
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The node's name.", show_default="its address's"),
    ] = None,
    cpus: Annotated[int | None, typer.Option(metavar="N", help="Number of processors.")] = None,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory, such as 2G.")] = None,
    idle: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="It leaves after so long without a job, such as 5m."),
    ] = None,
    lease: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="After this it takes no more jobs, such as 8h."),
    ] = None,
) -> None:
    """Start a worker node: a machine that joins the batch system.

    Its scheduler fills it. It leaves by itself when it has been idle, or when its lease has ended
    and its last job, too. Prints its name.
    """
    import asyncio

    from encamp.agent.caller import caller
    from encamp.agent.keeper import Keeper
    from encamp.agent.nodes.joining import start_node
    from encamp.cli.bar import Bar
    from encamp.home import default_home
    from encamp.model.job import MachineRequest
    from encamp.model.size import parse_bytes

    request = MachineRequest(
        environment=environment,
        owner=caller(),
        name=name,
        cpus=cpus,
        memory=None if memory is None else parse_bytes(memory, "--memory"),
    )
    keeper = Keeper.open(default_home())
    with Bar() as bar:
        machine = asyncio.run(
            start_node(keeper, request, bar, idle=_seconds(idle), lease=_seconds(lease))
        )
    print(machine.name)
    _remark(machine)


def _remark(machine: Machine) -> None:
    import sys

    from encamp.batch.enrol.opening import open_workers
    from encamp.describe.batch_file import load_batch_settings

    assert machine.node is not None
    try:
        workers = open_workers(load_batch_settings(), machine.node.system)
        remark = workers.remark(machine.name)
    except EncampError:
        return  # It has joined, which is what was asked for.
    if remark:
        print(f"encamp: {remark}", file=sys.stderr)


def _seconds(text: str | None) -> float | None:
    from encamp.cli.options import parse_duration

    return None if text is None else parse_duration(text)


def check_root(hint: str = "Jobs get to them by the batch system's own commands.") -> None:
    import os

    if os.geteuid() != 0:
        raise EncampError(Code.NOT_PERMITTED, "Worker nodes are root's.", f"Do it as root. {hint}")


def nodes(as_json: AsJson = False) -> None:
    """List the worker nodes of this host."""
    check_root()
    from encamp.agent.journal import Journal
    from encamp.agent.nodes.keeping import nodes_of
    from encamp.home import default_home

    found = nodes_of(Journal(default_home().prepare()))
    if as_json:
        from encamp.cli.machines import print_json

        print_json(found)
        return
    from encamp.cli.tables import show, table

    made = table("node", "environment", "address", "system", "state", "")
    for machine in found:
        node = machine.node
        assert node is not None
        address = machine.link.address if machine.link else ""
        words = (machine.name, machine.environment, address, node.system, node.state.value)
        made.add_row(*words, node.reason)
    show(made)


def leave(
    node: Annotated[str, typer.Argument(metavar="NODE", help="Its name.")],
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has left.")] = False,
) -> None:
    """Have a worker node of this host leave the batch system.

    No more jobs are sent to it; when the last one has ended, its machine ends.
    """
    check_root()
    import asyncio
    import time

    from encamp.agent.journal import Journal
    from encamp.agent.nodes.keeping import Nodes, ask_to_leave
    from encamp.cli.bar import Bar
    from encamp.home import default_home

    home = default_home().prepare()
    journal = Journal(home)
    machine = ask_to_leave(journal, _find(journal, node), "somebody asked for it", time.time())

    async def leaves(progress: Progress) -> None:
        """Its agent sees to the rest; without one it is at least sent no more jobs."""
        looking = Nodes(home)
        try:
            await looking.look()
        except EncampError as error:
            if wait or not error.transient:
                raise
        while wait and _is_there(journal, machine):
            progress.update(f"waiting for the last job on {machine.name}")
            await asyncio.sleep(WAIT)
            await looking.look()

    with Bar() as bar:
        asyncio.run(leaves(bar))


def _find(journal: Journal, name: str) -> Machine:
    try:
        return journal.find(name)
    except EncampError as error:
        if error.code is not Code.UNKNOWN_MACHINE:
            raise
        raise EncampError(
            error.code,
            f"There is no worker node '{name}' on this host.",
            "'encamp batch nodes' lists those that are here.",
        ) from error


def _is_there(journal: Journal, machine: Machine) -> bool:
    return journal.read(machine.id) is not None


def offer(
    environments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ENVIRONMENT...",
            help="Those with worker nodes.",
            show_default="list what is offered",
        ),
    ] = None,
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="Take back what was offered before.")
    ] = False,
) -> None:
    """Have jobs taken for environments that have no worker node yet.

    Slurm refuses 'sbatch -C NAME' as long as no node has that feature. Once done, jobs wait, and
    nodes can be started for them: see examples/triggers/nodes.yaml. It is done once, by a node
    encamp-offers-NAME that is never there; --withdraw removes that again, also for an environment
    that is described no more. Grid Engine takes such jobs anyway.
    """
    check_root()
    from encamp.batch.enrol.opening import open_workers
    from encamp.cli.batch import settings_of_site

    if withdraw and not environments:
        raise EncampError(
            Code.USAGE,
            "Nobody knows what is to be withdrawn.",
            "Name it: 'encamp batch offer' lists what is offered.",
        )
    settings = settings_of_site()
    workers = open_workers(settings, settings.system)
    for name in environments or ():
        if withdraw:
            workers.withdraw(name)
        else:
            _offer(name, settings)
    offered = workers.offered()
    if not environments:
        print("".join(f"{name}\n" for name in offered), end="")
    _remark_on_offers(offered, workers.system)


def _offer(name: str, settings: BatchSettings) -> None:
    from encamp.batch.enrol.opening import open_workers
    from encamp.describe.environments import find_environment

    environment = find_environment(name)
    if environment.enrol is None:
        raise EncampError(Code.USAGE, f"Machines of environment '{name}' are no worker nodes.", "")
    open_workers(settings, environment.enrol.system).offer(environment)


def _remark_on_offers(offered: list[str], system: str) -> None:
    """Another host may have described it: so nobody withdraws it unasked."""
    import sys

    from encamp.describe.environments import environments_that_enrol

    known = {one.name for one in environments_that_enrol(system)}
    for name in offered:
        if name not in known:
            print(
                f"encamp: '{name}' is offered to {system}, and no environment of this host that"
                f" enrols is called so: 'encamp batch offer --withdraw {name}' takes it back.",
                file=sys.stderr,
            )


def names() -> None:
    """Print this host's worker nodes as lines for /etc/hosts.

    Grid Engine's master, and whoever else must find nodes by name, needs them there or in DNS.
    """
    from encamp.describe.settings import load_settings
    from encamp.model.link import node_name

    bridge = load_settings().bridge
    if bridge is None:
        raise EncampError(
            Code.CONFIGURATION,
            "This host has no bridge for machines.",
            "Name one in /etc/encamp/settings.yaml: see 'encamp env check'.",
        )
    for address in bridge.range():
        print(f"{address}\t{node_name(address)}")
