"""`encamp run` and `encamp exec`: commands in machines, seen as if they ran here."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from encamp.cli import options
from encamp.cli.site_door import site_door
from encamp.cli.wishes import (
    Away,
    Count,
    How,
    Label,
    Local,
    Near,
    Priority,
    Rank,
    Requirements,
    Retries,
    Reuse,
    WaitAtMost,
    Wishes,
)
from encamp.model.driver import DriverName, Isolation
from encamp.model.errors import Code, EncampError
from encamp.model.machine import After
from encamp.model.storage import Storage

if TYPE_CHECKING:
    from encamp.model.job import Command, MachineRequest

COMMAND = {"allow_interspersed_args": False, "ignore_unknown_options": False}

Environment = Annotated[
    str,
    typer.Option(
        "--environment",
        "-e",
        metavar="NAME",
        help="The environment to run in; see 'encamp env ls'.",
    ),
]
Cpus = Annotated[int | None, typer.Option("--cpus", metavar="N", help="Number of processors.")]
Memory = Annotated[
    str | None, typer.Option("--memory", metavar="SIZE", help="Memory, for example 512M or 2G.")
]
Disk = Annotated[
    str | None,
    typer.Option(
        "--disk",
        metavar="SIZE",
        help="A disk of its own for what it writes; without, that lives in its memory.",
    ),
]
StorageKind = Annotated[
    Storage | None,
    typer.Option(
        "--storage",
        help="Where what it writes is kept: its memory, or a kind of disk on its host.",
        show_default="as the environment says: auto",
    ),
]
Shares = Annotated[
    list[str] | None,
    typer.Option(
        "--share",
        metavar="DIR[:PATH][:ro]",
        help="Show a directory of this host inside, under PATH or its own path: changes are seen"
        " at once on both sides, and locks of files hold for both.",
    ),
]
Network = Annotated[
    str | None,
    typer.Option(
        "--network",
        metavar="KIND",
        help="'none'; 'user': outgoing connections through this host; or 'bridge': an address"
        " on the host's bridge (for root).",
        show_default="as the environment says: none",
    ),
]
Driver = Annotated[
    DriverName | None,
    typer.Option(
        "--driver",
        envvar="ENCAMP_DRIVER",
        help="What the machine is made of: QEMU with KVM, QEMU alone, or a user-mode kernel.",
        show_default="what suits it best on its host",
    ),
]
LeastIsolation = Annotated[
    Isolation | None,
    typer.Option(
        "--isolation",
        envvar="ENCAMP_ISOLATION",
        help="The weakest that you take of what keeps its guest in: the processor, a kernel of its"
        " own, or namespaces.",
        show_default="as the environment says: kernel",
    ),
]
ImageName = Annotated[
    str | None,
    typer.Option(
        "--image",
        metavar="REFERENCE",
        help="Another image than the environment's: NAME, NAME:VERSION or its digest.",
    ),
]
BootFlag = Annotated[bool, typer.Option("--boot", help="Boot it, even if it could be cloned.")]
Name = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="Name of the machine, and its host name."),
]
Variables = Annotated[
    list[str] | None,
    typer.Option(
        "--env-var",
        metavar="NAME[=VALUE]",
        help="A variable for the command; your own if no value.",
    ),
]
Workdir = Annotated[
    str | None,
    typer.Option("--workdir", "-w", metavar="PATH", help="Where it starts; else in its home."),
]
Terminal = Annotated[
    bool, typer.Option("--terminal", "-t", help="Give the command a terminal, like yours.")
]
Timeout = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        metavar="TIME",
        help="End the command after this: 90, 10m, 2h. It is told to end, and killed 5 s later.",
    ),
]
MaybeWords = Annotated[
    list[str] | None, typer.Argument(metavar="[COMMAND [ARG]...]", show_default=False)
]
Words = Annotated[list[str], typer.Argument(metavar="COMMAND [ARG]...", show_default=False)]


COMMANDS = ("run", "exec", "shell")


def register(app: typer.Typer) -> None:
    app.command(context_settings=COMMAND)(run)
    app.command("exec", context_settings=COMMAND)(execute)
    app.command()(shell)


def run(
    command: MaybeWords = None,
    environment: Environment = "mini",
    cpus: Cpus = None,
    memory: Memory = None,
    disk: Disk = None,
    storage: StorageKind = None,
    variables: Variables = None,
    workdir: Workdir = None,
    share: Shares = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--in", metavar="SRC[:DST]", help="Copy a file or tree in before the command runs."
        ),
    ] = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option(
            "--out",
            metavar="SRC[:DST]",
            help="Copy files or trees out afterwards; SRC may be a pattern such as '*.csv'.",
        ),
    ] = None,
    network: Network = None,
    driver: Driver = None,
    isolation: LeastIsolation = None,
    terminal: Terminal = False,
    timeout: Timeout = None,
    after: Annotated[
        After | None,
        typer.Option(
            "--after",
            help="What becomes of the machine when the command has ended.",
            show_default="as the environment says: destroy",
        ),
    ] = None,
    save_as: Annotated[
        str | None,
        typer.Option(
            "--save-as",
            metavar="NAME[:VERSION]",
            help="The image that the machine is saved as afterwards; means --after save.",
        ),
    ] = None,
    image: ImageName = None,
    boot: BootFlag = False,
    name: Name = None,
    timings: Annotated[
        bool, typer.Option("--timings", help="Show where the time went, on standard error.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the outcome as a line of JSON, the last on standard error."
        ),
    ] = False,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach", "-d", help="Do not wait: print its id. What it prints is kept for you."
        ),
    ] = False,
    count: Count = 1,
    requirements: Requirements = None,
    rank: Rank = None,
    priority: Priority = None,
    label: Label = None,
    near: Near = None,
    away: Away = None,
    together: How = None,
    retries: Retries = None,
    wait_at_most: WaitAtMost = None,
    reuse: Reuse = False,
    local: Local = False,
) -> int:
    """Run a command in a fresh machine.

    Without a command, a container's image runs its own. Output and exit code are the command's.
    Ctrl-C reaches the command; a second one kills
    the machine. Directories named by --share are live; --in and --out copy.

    Where there is a site (a manager's door on this host, or 'encamp login'), the job goes to the
    best of its hosts, and waits until there is room; --local runs it here. 'encamp jobs' lists
    jobs, 'encamp why ID' tells what one waits for, 'encamp logs ID' shows what a detached one has
    printed.

    Example: encamp run -e debian12 --share . -w "$PWD" -- ./analyse data.csv
    """
    from encamp.model.job import Job

    wishes = Wishes(
        count=count,
        requirements=requirements,
        rank=rank,
        priority=priority,
        label=label,
        near=tuple(near or ()),
        away=tuple(away or ()),
        together=together,
        retries=retries,
        wait_at_most=wait_at_most,
        reuse=reuse,
        detach=detach,
    )

    request = machine_request(
        environment,
        cpus,
        memory,
        disk,
        storage,
        share,
        network,
        boot,
        name,
        image,
        driver,
        isolation,
    )
    door = site_door(local=local)
    job = Job(
        machine=request,
        command=command_of(
            command or _own_command(request, away=door is not None), variables, workdir, terminal
        ),
        inputs=tuple(options.parse_copy(text, "--in") for text in inputs or ()),
        outputs=tuple(options.parse_copy(text, "--out") for text in outputs or ()),
        timeout=None if timeout is None else options.parse_duration(timeout),
        after=After.SAVE if after is None and save_as is not None else after,
        save_as=save_as,
    )
    if door is not None:
        from encamp.cli.site_run import run_through_site

        return run_through_site(door, job, wishes, timings=timings, as_json=as_json)
    wishes.check_alone(local=local)

    from encamp.cli.session import run_here

    return run_here(job, timings=timings, as_json=as_json)


def _own_command(request: MachineRequest, *, away: bool) -> list[str]:
    if away:
        raise EncampError(
            Code.USAGE,
            "There is no command to run.",
            f"Write it behind the options: encamp run -e {request.environment} -- COMMAND. With"
            " --local, a container's own is run on this host.",
        )
    from encamp.cli.session import own_command

    return own_command(request)


def execute(
    machine: Annotated[str, typer.Argument(metavar="MACHINE", show_default=False)],
    command: Words,
    variables: Variables = None,
    workdir: Workdir = None,
    terminal: Terminal = False,
    timeout: Timeout = None,
    local: Local = False,
) -> int:
    """Run a command in a machine that is running already.

    A machine of this host is named by its name or id; so is one of the site's, wherever it is.

    Example: encamp exec work -- uname -a
    """
    seconds = None if timeout is None else options.parse_duration(timeout)
    if command[0] == "--":
        command = command[1:]
    if not command:
        raise EncampError(Code.USAGE, "There is no command to run.", "See 'encamp exec --help'.")
    return _execute(machine, command_of(command, variables, workdir, terminal), seconds, local)


def shell(
    machine: Annotated[str, typer.Argument(metavar="MACHINE", show_default=False)],
    local: Local = False,
) -> int:
    """Open a shell in a machine, with a terminal if you have one."""
    has_terminal = sys.stdin.isatty()
    words = ["/bin/sh", "-c", "if command -v bash >/dev/null; then exec bash -l; fi; exec sh -l"]
    if not has_terminal:
        words = ["/bin/sh"]
    return _execute(machine, command_of(words, None, None, has_terminal), None, local)


def _execute(machine: str, command: Command, timeout: float | None, local: bool) -> int:
    """Machines of one's own on this host come first: the site need not be asked for them."""
    door = site_door(local=local)
    if door is not None:
        from encamp.cli.site_exec import execute_through_site, is_here

        if not is_here(machine):
            return execute_through_site(door, machine, command, timeout)
    from encamp.cli.session import execute_here

    return execute_here(machine, command, timeout)


def command_of(
    words: list[str], variables: list[str] | None, workdir: str | None, terminal: bool
) -> Command:
    from encamp.model.job import Command
    from encamp.model.runnable import check_command

    command = Command(
        arguments=tuple(words),
        variables=tuple(options.parse_variable(text) for text in variables or ()),
        workdir=workdir,
        terminal=os.environ.get("TERM", "dumb") if terminal else None,
    )
    check_command(command)
    return command


def machine_request(
    environment: str,
    cpus: int | None,
    memory: str | None,
    disk: str | None,
    storage: Storage | None,
    share: list[str] | None,
    network: str | None,
    boot: bool,
    name: str | None,
    image: str | None = None,
    driver: DriverName | None = None,
    isolation: Isolation | None = None,
) -> MachineRequest:
    from encamp.model.job import MachineRequest
    from encamp.model.size import parse_bytes
    from encamp.model.wanted import check_network

    check_network(network)
    return MachineRequest(
        environment=environment,
        owner=options.caller(),
        name=name,
        cpus=cpus,
        memory=None if memory is None else parse_bytes(memory, "--memory"),
        disk=None if disk is None else parse_bytes(disk, "--disk"),
        storage=storage,
        shares=tuple(options.parse_share(text) for text in share or ()),
        network=network,
        boot=boot,
        image=image,
        driver=driver,
        isolation=isolation,
    )
