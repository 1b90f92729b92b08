"""The daemons of a site: manager and agent, in one process or each on its own host."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from encamp.cli.cleaning import remark
from encamp.model.errors import Code, EncampError

if TYPE_CHECKING:
    from encamp.agent.daemon import Agent
    from encamp.agent.daemon import Opening as AgentOpening
    from encamp.agent.properties.finding import Plugins
    from encamp.home import Home
    from encamp.manager.daemon import Manager, Opening
    from encamp.manager.leading import Leading, RankedOpening
    from encamp.manager.membership import Membership
    from encamp.model.command import CommandDefinition
    from encamp.model.property import PropertyDefinition, Value
    from encamp.model.site import Site

Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Log what happens, and not only what is wrong.")
]


def register(app: typer.Typer) -> None:
    for command in (serve, manager, agent):
        app.command()(command)


def serve(verbose: Verbose = False) -> None:
    """Run a whole site, manager and agent, on this machine.

    Manager, agent, store and bus are one process. Nothing needs to be configured. Stop it with
    Ctrl-C; machines and commands under way go on, and the next one finds them again.

    Example: encamp serve & encamp hosts
    """
    from encamp.bus.local import LocalHub
    from encamp.cli.daemons import run_daemon
    from encamp.home import default_home
    from encamp.model.site import Site

    site = _site() or Site()
    if site.bus:
        remark("site.yaml names a bus, which 'encamp serve' does not use: it is a site of its own.")
        site = msgspec.structs.replace(site, bus=())
    home = default_home().prepare()
    hub = LocalHub()
    managing = _leading(
        site, home, lambda name, groups, take, _: hub.participant(name, groups, take)
    )
    working = _agent(site, home, hub.participant)

    async def both() -> None:
        ready = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(managing.run(ready.set))
            await ready.wait()
            tasks.create_task(working.run())
            await working.joined.wait()
            remark(f"The site is up, with this host, {working.name}. 'encamp hosts' shows it.")

    async def reload() -> None:
        await _reload_agent(working)
        managing.reload()

    run_daemon(both, verbose=verbose, reload=reload)


def manager(verbose: Verbose = False) -> None:
    """Run the manager of a site.

    It knows the hosts, decides, and tells their agents what to do. Needs site.yaml with the servers
    of the bus; 'encamp site init' writes it. SIGHUP has triggers, environments and the sharing of
    hosts ('placement', 'submit') read anew.

    With a store in PostgreSQL it can run on several hosts, with the same site.yaml and credential:
    one leads, and when it is gone, stuck or cut off, another takes over within seconds.
    """
    from encamp.bus.opening import open_bus
    from encamp.cli.daemons import run_daemon
    from encamp.describe.places import daemon_directory
    from encamp.home import default_home
    from encamp.manager.membership import Membership

    site = _needed_site()
    members = Membership(Path(daemon_directory()))
    managing = _leading(
        site,
        default_home().prepare(),
        lambda name, groups, take, rank: open_bus(site, name, groups, take, rank=rank),
        members,
    )

    async def reload() -> None:
        managing.reload()

    ready = f"The manager of site {site.name} is up."
    run_daemon(lambda: managing.run(lambda: remark(ready)), verbose=verbose, reload=reload)


def agent(
    name: Annotated[
        str | None,
        typer.Option(
            "--name", help="The host's name, if site.yaml does not give it.", metavar="NAME"
        ),
    ] = None,
    alone: Annotated[
        bool,
        typer.Option(
            "--alone", help="Without a site: only for the jobs that its batch system sends here."
        ),
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Run the agent of this host.

    It reads properties, carries out commands, and owns machines. Needs site.yaml and this host's
    credential; 'encamp site join SECRET' writes both. Machines and commands outlive it. SIGHUP
    reads definitions of properties and commands, and batch.yaml, anew.

    With a batch.yaml, which 'encamp batch install' writes, it also makes machines for the jobs of
    the batch system; for that it needs no manager, and with --alone no site.
    """
    from encamp.cli.daemons import run_daemon
    from encamp.home import default_home

    if alone:
        site, opening = _site() or _no_site(), None
        _check_bait()
    else:
        site = _needed_site()
        opening = _nats(site)
    working = _agent(site, default_home().prepare(), opening, name)
    run_daemon(working.run, verbose=verbose, reload=lambda: _reload_agent(working))


def _site() -> Site | None:
    from encamp.describe.site_file import load_site

    return load_site()


def _needed_site() -> Site:
    from encamp.describe.places import daemon_directory

    site = _site()
    if site is None or not site.bus:
        raise EncampError(
            Code.CONFIGURATION,
            f"There is no site in {daemon_directory()}: its site.yaml is missing, or names no bus.",
            "'encamp site init' makes one, 'encamp site join SECRET' joins one, and 'encamp serve'"
            " needs none.",
        )
    return site


def _no_site() -> Site:
    from encamp.model.site import Site

    return Site()


def _check_bait() -> None:
    """Without a site and without a batch system there would be nothing to do."""
    from encamp.agent.bait.serving import wanted_bait
    from encamp.describe.batch_file import BATCH
    from encamp.describe.places import daemon_directory

    if os.geteuid() != 0:
        raise EncampError(
            Code.NOT_PERMITTED,
            "Only root's agent makes machines for the jobs of a batch system: they are anybody's.",
            "Start it as root, or without --alone.",
        )
    if wanted_bait() is None:
        raise EncampError(
            Code.CONFIGURATION,
            f"There is no batch system to work with: {daemon_directory()}/{BATCH} is missing.",
            "'encamp batch install' writes it.",
        )


def _nats(site: Site) -> AgentOpening:
    from encamp.bus.opening import open_bus

    return lambda name, groups, handler: open_bus(site, name, groups, handler)


def _agent(site: Site, home: Home, opening: AgentOpening | None, name: str | None = None) -> Agent:
    from encamp.agent.daemon import Agent
    from encamp.agent.properties.finding import Plugins

    plugins = Plugins()
    definitions, trouble = _properties(plugins)
    return Agent(
        home,
        name or site.host or os.uname().nodename,
        site.groups,
        opening,
        definitions,
        plugins,
        trouble,
        site=site,
    )


def _properties(
    plugins: Plugins, *, anywhere: bool = False
) -> tuple[tuple[PropertyDefinition, ...], str]:
    """The properties of this host; with a mistake in its files the shipped ones, and what is wrong.
    A host that cannot tell all is better than one that tells nothing."""
    from encamp.describe.property_files import load_properties, shipped_properties

    try:
        return load_properties(plugins.names, anywhere=anywhere), ""
    except EncampError as error:
        _complain(error)
        return shipped_properties(), _in_a_line(error)


async def _reload_agent(working: Agent) -> None:
    from encamp.agent.properties.finding import Plugins
    from encamp.describe.property_files import load_properties

    try:
        await working.reload(load_properties(Plugins().names))
    except EncampError as error:
        _complain(error)
        await working.reload(None, _in_a_line(error))


def _complain(error: EncampError) -> None:
    import logging

    logging.getLogger(__name__).warning("%s\n%s", error, error.detail)


def _in_a_line(error: EncampError) -> str:
    first = error.detail.splitlines()[0] if error.detail else ""
    return f"{error.sentence} {first}".rstrip()


def _leading(
    site: Site, home: Home, opening: RankedOpening, members: Membership | None = None
) -> Leading:
    from encamp.door.places import manager_door
    from encamp.door.socket_file import check_free

    door = manager_door(site, home)
    check_free(door)  # Before the rest is loaded, which takes its time.

    from encamp.manager.daemon import Manager
    from encamp.manager.leading import Leading
    from encamp.model.site import Site

    known = _known()

    def begin(bus: Opening) -> Manager:
        """It may have stood by for long: what it knows is read again."""
        nonlocal known, site
        try:
            known = _known()
            now = _site() or Site()
            site = msgspec.structs.replace(site, placement=now.placement, submit=now.submit)
        except EncampError as error:
            _complain(error)
        return Manager(site, home, door, bus, *known, members)

    return Leading(site, home, door, opening, begin, remark)


def _known() -> tuple[
    tuple[PropertyDefinition, ...], dict[str, CommandDefinition], dict[str, dict[str, Value]]
]:
    """What a manager knows before it hears of any host."""
    from encamp.agent.commands.starting import read_offers
    from encamp.agent.properties.finding import Plugins
    from encamp.manager.environments import environment_facts

    commands = {definition.name: definition for definition in read_offers().definitions}
    return _properties(Plugins(), anywhere=True)[0], commands, environment_facts()
