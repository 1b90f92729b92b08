"""`encamp top`: the site, live, on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from encamp.model.errors import Code, EncampError

if TYPE_CHECKING:
    from encamp.cli.top_view import Snapshot

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one line for each look.")]
EVENTS = 100
COMMANDS = 200


def register(app: typer.Typer) -> None:
    app.command()(top)


def top(
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.2, help="Time between two looks.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, print it, and end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch the site live.

    Hosts, what waits and why, what runs, machines, and what just happened. 'q' or Ctrl-C leaves.
    When the manager is restarted, it goes on.

    Example: encamp top --once | less -R
    """
    import asyncio
    import sys

    if once or as_json:
        asyncio.run(_print(once, as_json, every))
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise EncampError(
            Code.USAGE, "Only a terminal can show this live.", "Use --once, or --json."
        )
    from encamp.cli.top_live import live

    asyncio.run(live(every))


async def _print(once: bool, as_json: bool, every: float) -> None:
    import asyncio
    import sys

    from encamp.cli.cleaning import json_text

    while True:
        snapshot = await look()
        if as_json:
            sys.stdout.write(json_text(snapshot) + "\n")
        else:
            from rich.console import Console

            from encamp.cli.top_view import View

            Console(highlight=False, markup=False).print(View(snapshot))
        sys.stdout.flush()
        if once:
            return
        await asyncio.sleep(every)


async def look() -> Snapshot:
    """Ask the manager all that is shown, at once."""
    import asyncio
    import time

    from encamp.cli.asking import asked_quietly
    from encamp.cli.hosts import SHOWN
    from encamp.cli.top_view import Snapshot
    from encamp.door.questions import (
        AskCommands,
        AskEvents,
        AskHosts,
        AskMachines,
        AskRequests,
        AskStatus,
        SiteMachine,
        Status,
    )
    from encamp.model.command import CommandRecord
    from encamp.model.event import Event
    from encamp.model.host import Host
    from encamp.model.request import RequestRecord

    status, hosts, machines, requests, commands, events = await asyncio.gather(
        asyncio.to_thread(asked_quietly, AskStatus(), Status, Status),
        asyncio.to_thread(asked_quietly, AskHosts(brief=SHOWN), Host, Host),
        asyncio.to_thread(asked_quietly, AskMachines(), SiteMachine, SiteMachine),
        asyncio.to_thread(
            asked_quietly,
            AskRequests(last=COMMANDS, under_way=True),
            RequestRecord,
            RequestRecord,
        ),
        asyncio.to_thread(
            asked_quietly, AskCommands(last=COMMANDS, under_way=True), CommandRecord, CommandRecord
        ),
        asyncio.to_thread(asked_quietly, AskEvents(last=EVENTS), Event, Event),
    )
    return Snapshot(
        at=time.time(),
        status=status[0],
        hosts=hosts,
        machines=machines,
        requests=requests,
        commands=commands,
        events=events,
    )
