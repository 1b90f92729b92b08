"""`encamp batch resume` and `suspend`: what Slurm's power saving calls.

Slurm starts them with signals blocked, and ends what they leave in their process group: so each
node is had join by a process of its own, which goes on when this one is over.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Annotated

import typer

from encamp.cli.batch_nodes import check_root

Nodes = Annotated[str, typer.Argument(metavar="HOSTLIST", help="Nodes, as Slurm writes them.")]

On = Annotated[
    list[str] | None,
    typer.Option(
        "--on",
        metavar="HOST",
        help="Hosts of the site for them, or '@GROUP'; can be repeated.",
        show_default="this host",
    ),
]

FOR_EVER = "36500d"
"""How long such a node may be idle: when it is to end is Slurm's business (SuspendTime)."""
LOG = "resume.log"
AS_SLURM = "Where SlurmUser is not root, have the programs call it with sudo, or use --on."


def register(group: typer.Typer) -> None:
    group.command()(resume)
    group.command()(suspend)


def resume(
    nodes: Nodes,
    environment: Annotated[
        str | None,
        typer.Option(
            "--environment",
            "-e",
            metavar="NAME",
            help="Of what they are made.",
            show_default="the first of their features that is one",
        ),
    ] = None,
    on: On = None,
) -> None:
    """Make the machines of Slurm's nodes, for its ResumeProgram.

    For nodes that Slurm has as State=CLOUD. They are made on this host, or with --on where most
    room is among hosts of the site. Returns at once; the nodes join by themselves.
    """
    from encamp.batch.enrol.slurm import SlurmWorkers
    from encamp.batch.slurm.hostlist import expand
    from encamp.cli.batch import settings_of_site
    from encamp.describe.environments import all_environments
    from encamp.home import default_home

    names = expand(nodes)
    workers = SlurmWorkers(settings_of_site())
    known = [name for name, one in all_environments().items() if one.enrol is not None]
    wanted = {name: environment or workers.environment_of(name, known) for name in names}
    if on:
        from encamp.cli.batch_power_site import start_nodes

        start_nodes(wanted, on)
        return
    check_root(AS_SLURM)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with open(default_home().prepare().root / LOG, "ab") as log:
        for name, made_of in wanted.items():
            command = [sys.executable, "-m", "encamp.cli.main", "batch", "start", made_of]
            subprocess.Popen(
                [*command, "--name", name, "--idle", FOR_EVER],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def suspend(nodes: Nodes, on: On = None) -> None:
    """End the machines of Slurm's nodes, for its SuspendProgram.

    None ends under a job: one that has one goes on until that is over.
    """
    import asyncio
    import time

    from encamp.agent.journal import Journal
    from encamp.agent.nodes.keeping import Nodes, ask_to_leave, nodes_of
    from encamp.batch.slurm.hostlist import expand
    from encamp.home import default_home

    if on:
        from encamp.cli.batch_power_site import end_nodes

        end_nodes(set(expand(nodes)), on)
        return
    check_root(AS_SLURM)
    home = default_home().prepare()
    journal = Journal(home)
    names = set(expand(nodes))
    found = [machine for machine in nodes_of(journal) if machine.name in names]
    for machine in found:
        ask_to_leave(journal, machine, "Slurm asked for it", time.time())
    looking = Nodes(home)
    # Twice: no more jobs are sent, and then there is none.
    for _ in range(2 if found else 0):
        asyncio.run(looking.look())
