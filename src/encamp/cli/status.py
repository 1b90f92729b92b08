"""`encamp status`: the site at one look."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    app.command()(status)


def status(as_json: AsJson = False) -> None:
    """Tell whether a manager answers, and how its site is.

    Example: encamp status --json
    """
    from encamp.cli.asking import asked_one, door
    from encamp.cli.machines import print_json
    from encamp.cli.tables import ago, clean, moment, show, table
    from encamp.door.questions import AskStatus, Status

    found = asked_one(AskStatus(), Status)
    if as_json:
        print_json(found)
        return
    made = table("", "")
    made.show_header = False
    hosts = ", ".join(f"{count} {presence}" for presence, count in found.hosts.items() if count)
    facts = {
        "site": found.site,
        "manager": f"Encamp {found.version}, answers at {door()}",
        "since": f"{moment(found.started)} ({ago(found.started)} ago)",
        "hosts": hosts or "none",
        "machines": str(found.machines),
        "commands": f"{found.commands_under_way} under way",
        "triggers": str(found.triggers),
        "store": found.store or "in order",
        "messages": f"{found.messages} from agents",
    }
    for key, value in facts.items():
        made.add_row(key, clean(value))
    show(made)
