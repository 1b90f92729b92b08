"""`encamp status`: the site at one look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from encamp.door.questions import Status
    from encamp.model.leader import SeenManager

RESTORED = (
    "Nothing is started, and no token is valid, until 'encamp site restored --cancel-waiting'"
    " (or --keep-waiting) says how it goes on."
)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    app.command()(status)


def status(as_json: AsJson = False) -> None:
    """Tell whether a manager answers, leads, and how its site is.

    Example: encamp status --json
    """
    from encamp.cli.asking import asked_one, door
    from encamp.cli.login import described
    from encamp.cli.machines import print_json
    from encamp.cli.tables import show, table
    from encamp.door.questions import AskStatus, Status

    found = asked_one(AskStatus(), Status)
    if as_json:
        print_json(found)
        return
    made = table("", "")
    made.show_header = False
    facts = {
        "site": found.site,
        "manager": f"Encamp {found.version}, answers at {door()}",
        **({"you": described(found.asker)} if found.asker is not None else {}),
        "since": _since(found.started),
        "leads": _leader(found),
        "standing by": "; ".join(map(_manager, found.leadership.standing_by)) or "nobody",
        "store": found.store or "in order",
    }
    if found.restored:
        facts["stands still"] = f"{found.restored} {RESTORED}"
    if found.leads:
        facts |= _site(found)
    for key, value in facts.items():
        made.add_row(key, value)
    show(made)


def _site(found: Status) -> dict[str, str]:
    hosts = ", ".join(f"{count} {presence}" for presence, count in found.hosts.items() if count)
    requests = ", ".join(f"{count} {state}" for state, count in found.requests.items())
    return {
        "hosts": hosts or "none",
        "machines": str(found.machines),
        "requests": requests or "none",
        "commands": f"{found.commands_under_way} under way",
        "triggers": f"{found.triggers}. {found.triggers_refused}".rstrip(". "),
        "messages": f"{found.messages} from agents",
    }


def _leader(found: Status) -> str:
    """Who does, and whether that is the one that answers."""
    leadership = found.leadership
    if leadership.leader is None:
        return "this one" if found.leads else "nobody that it knows of; this one stands by"
    who = "this one" if found.leads else "another; this one stands by"
    return f"{_manager(leadership.leader)}, epoch {leadership.epoch}: {who}"


def _manager(manager: SeenManager) -> str:
    trouble = f", and could not lead now: {manager.trouble}" if manager.trouble else ""
    return f"{manager.host} since {_since(manager.since)}{trouble}"


def _since(seconds: float) -> str:
    from encamp.cli.tables import ago, moment

    return f"{moment(seconds)} ({ago(seconds)} ago)" if seconds else "now"
