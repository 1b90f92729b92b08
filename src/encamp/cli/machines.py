"""Machines by hand: start, look, move, end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from encamp.cli.cleaning import remark
from encamp.cli.run import (
    BootFlag,
    Cpus,
    Disk,
    Driver,
    Environment,
    ImageName,
    LeastIsolation,
    Memory,
    Name,
    Network,
    Shares,
    StorageKind,
    machine_request,
)
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
    WaitAtMost,
    Wishes,
)
from encamp.model.errors import Code, EncampError

if TYPE_CHECKING:
    from encamp.agent.keeper import Keeper
    from encamp.model.machine import Machine

One = Annotated[str, typer.Argument(metavar="MACHINE", show_default=False)]
Some = Annotated[list[str], typer.Argument(metavar="MACHINE...", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    commands: tuple[Callable[..., int | None], ...] = (
        *(start, ps, show, copy, console),
        *(pause, resume, suspend, restore, stop, kill, rm),
    )
    for command in commands:
        app.command()(command)
    app.command("kill-all")(kill_all)


def keeper() -> Keeper:
    from encamp.agent.keeper import Keeper
    from encamp.home import default_home

    return Keeper.open(default_home())


def is_elsewhere(reference: str) -> bool:
    """Is a machine none of the caller's own on this host, so that the site is to be asked?"""
    if site_door() is None:
        return False
    from encamp.cli.site_exec import is_here

    return not is_here(reference)


def start(
    environment: Environment = "mini",
    cpus: Cpus = None,
    memory: Memory = None,
    disk: Disk = None,
    storage: StorageKind = None,
    share: Shares = None,
    network: Network = None,
    driver: Driver = None,
    isolation: LeastIsolation = None,
    image: ImageName = None,
    boot: BootFlag = False,
    name: Name = None,
    as_json: AsJson = False,
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
    local: Local = False,
) -> int:
    """Start a machine that stays until you end it. Prints its name.

    Where there is a site, machines are started on the best of its hosts, as soon as there is room;
    --local starts one here. Their names are printed, or the ids of several; 'encamp ps' lists
    them, and 'encamp stop', 'rm' and so on are for them as for those of this host.

    Example: encamp start --name work -e debian12 && encamp exec work -- uname -a
    """
    from encamp.cli.bar import Bar

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
    )
    door = site_door(local=local)
    if door is not None:
        from encamp.cli.site_start import start_through_site

        return start_through_site(door, request, wishes, as_json=as_json)
    wishes.check_alone(local=local)
    with Bar() as bar:
        machine = asyncio.run(keeper().start(request, bar))
    if as_json:
        print_json(machine)
    else:
        print(machine.name)
    return 0


def ps(
    everyone: Annotated[
        bool, typer.Option("--everyone", help="Machines of other users too (root only).")
    ] = False,
    site: Annotated[
        bool, typer.Option("--site", help="Machines of all hosts of the site; asks its manager.")
    ] = False,
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="PATTERN",
            help="With --site: only on these hosts.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List your machines, their states and the reasons.

    Where there is a site, those that you started on it too, with their hosts; --site lists the
    machines of everybody.

    Example: encamp ps --site --host 'node*'
    """
    if host and not site:
        raise EncampError(Code.USAGE, "--host chooses among the hosts of a site.", "Add --site.")
    if site:
        from encamp.cli.machine_lists import list_site_machines

        list_site_machines(tuple(host or ()), as_json=as_json)
        return
    from encamp.agent.vanished import end_vanished

    kept = keeper()
    for vanished in end_vanished(kept.home):
        remark(f"Machine {vanished.name[:8]} was ended: its directory has been removed.")
    machines = kept.journal.all()
    if site_door() is not None:
        from encamp.cli.machine_lists import list_own_machines

        list_own_machines(machines, as_json=as_json)
    elif as_json:
        print_json(machines)
    else:
        from encamp.cli.machine_lists import list_machines

        list_machines(machines)
    if everyone:
        _print_strangers({machine.id for machine in machines})


def _print_strangers(own: set[str]) -> None:
    from encamp.agent.others import may_see_others, strangers
    from encamp.cli.tables import format_bytes, show, table
    from encamp.home import user_name

    if not may_see_others():
        raise EncampError(
            Code.NOT_PERMITTED, "Only root, without ENCAMP_HOME, sees the machines of others."
        )
    made = table("id", "owner", "memory", "process")
    for stranger in strangers(own):
        made.add_row(
            stranger.id[:8],
            user_name(stranger.owner),
            format_bytes(stranger.memory),
            str(stranger.pid),
        )
    show(made)


def show(machine: One, as_json: AsJson = False) -> None:
    """Show all that is known of a machine, and where its time went."""
    if is_elsewhere(machine):
        from encamp.cli.machine_lists import show_on_site

        show_on_site(machine, as_json=as_json)
        return
    kept = keeper()
    found = kept.journal.find(machine)
    if as_json:
        print_json(found)
        return
    from encamp.cli.tables import print_machine
    from encamp.machines.process import lock_holder

    directory = kept.journal.directory(found.id)
    more = {"directory": str(directory.path)}
    pid = lock_holder(directory.lock)
    if pid is not None:
        more["process"] = str(pid)
    if directory.context.exists():
        more["context file"] = str(directory.context)
    print_machine(found, more)


def copy(
    source: Annotated[str, typer.Argument(metavar="SRC", show_default=False)],
    target: Annotated[str, typer.Argument(metavar="DST", show_default=False)],
) -> int:
    """Copy files or trees into a machine or out of it.

    One of SRC and DST is MACHINE:PATH. Out of a machine, PATH may be a pattern.

    Example: encamp copy data work:/tmp; encamp copy 'work:/tmp/*.csv' results/
    """
    from encamp.cli.copy import copy_files

    return copy_files(source, target)


def console(machine: One) -> None:
    """Print what the guest has printed since it booted."""
    if is_elsewhere(machine):
        from encamp.cli.site_moves import console_on_site

        console_on_site(machine)
        return
    kept = keeper()
    for piece in kept.journal.directory(kept.journal.find(machine).id).printed():
        sys.stdout.buffer.write(piece)


def pause(machine: Some) -> None:
    """Let machines stand still.

    They keep their memory and use no processor."""
    _each(machine, "pause", lambda kept, found: kept.pause(found))


def resume(machine: Some) -> None:
    """Let paused machines go on."""
    _each(machine, "resume", lambda kept, found: kept.resume(found))


def suspend(machine: Some) -> None:
    """Put machines into context files.

    They use neither memory nor processor until they are restored, also after a restart of the
    host."""
    _each(machine, "suspend", lambda kept, found: kept.suspend(found))


def restore(machine: Some) -> None:
    """Wake suspended machines up, just as they were."""
    _each(machine, "restore", lambda kept, found: kept.restore(found))


def stop(machine: Some) -> None:
    """Shut machines down from inside. Their records stay until 'encamp rm'."""
    _each(machine, "stop", lambda kept, found: kept.stop(found))


def kill(machine: Some) -> None:
    """End machines at once. Their records stay until 'encamp rm'."""
    _each(machine, "kill", lambda kept, found: kept.kill(found))


def rm(
    machine: Some,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Also if it is running: kill it first.")
    ] = False,
) -> None:
    """Remove machines that have ended or are suspended."""

    def remove(kept: Keeper, found: Machine) -> Awaitable[object]:
        if found.node is None:
            return kept.remove(found, force=force)
        from encamp.agent.nodes import removing

        return removing.remove(kept, found, force=force)

    _each(machine, "remove", remove, force=force)


def kill_all(
    mine: Annotated[bool, typer.Option("--mine", help="Only root's own, when root asks.")] = False,
) -> None:
    """End and remove all your machines, here and on the site.

    As root, end those of everybody on this host: their owners' next command clears what is left."""
    kept = keeper()
    ended = []

    async def everything() -> None:
        from encamp.agent.others import end, may_see_others, strangers

        for machine in await kept.kill_all():
            ended.append(machine)
            print(machine.name)
        if may_see_others() and not mine:
            for stranger in strangers(set()):
                if await end(stranger):
                    print(stranger.id)

    asyncio.run(everything())
    if site_door() is not None:
        from encamp.cli.machine_lists import own_on_site

        rm([one.machine.id for one in own_on_site(ended)], force=True)


def _each(
    references: list[str],
    name: str,
    move: Callable[[Keeper, Machine], Awaitable[object]],
    *,
    force: bool = False,
) -> None:
    """Make a move with each machine, here or on the site; all are tried, and the first failure is
    reported last."""
    kept = keeper()
    failures: list[EncampError] = []
    for reference in references:
        try:
            print(_moved(kept, reference, name, move, force=force))
        except EncampError as error:
            failures.append(error)
    for failure in failures[1:]:
        remark(str(failure))
    if failures:
        raise failures[0]


def _moved(
    kept: Keeper,
    reference: str,
    name: str,
    move: Callable[[Keeper, Machine], Awaitable[object]],
    *,
    force: bool,
) -> str:
    try:
        found = kept.journal.find(reference)
    except EncampError as error:
        if error.code is not Code.UNKNOWN_MACHINE or site_door() is None:
            raise
        from encamp.cli.site_moves import move_on_site

        move_on_site(reference, name, force=force)
        return reference
    asyncio.run(_awaited(move(kept, found)))
    return found.name


async def _awaited(work: Awaitable[object]) -> None:
    await work


def print_json(value: object) -> None:
    from encamp.cli.cleaning import json_text

    print(json_text(value, indented=True))
