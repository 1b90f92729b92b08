"""`encamp properties`: what a host has read about itself."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated

import typer

from encamp.model.errors import Code, EncampError

if TYPE_CHECKING:
    from encamp.model.host import Host

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    app.command()(properties)


def properties(
    host: Annotated[
        str, typer.Argument(metavar="[HOST]", help="A name, pattern or @group; without, all.")
    ] = "*",
    name: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Only these.", show_default=False),
    ] = None,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Ask the host to read them anew, and wait for it.")
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="How long to wait for that.")
    ] = 10.0,
    as_json: AsJson = False,
) -> None:
    """Show what hosts have read about themselves.

    Each value with the time since it was told, which is when it last changed by more than its
    tolerance; where there is none, the reason stands in its place.

    Example: encamp properties node7 memory_free load1 --refresh

    Example: encamp properties '@workers' kernel --json
    """
    from encamp.cli.asking import asked, no_host
    from encamp.cli.machines import print_json
    from encamp.door.questions import AskHosts, AskProperties
    from encamp.model.host import Host

    names = tuple(name or ())
    question = (
        AskProperties(hosts=(host,), properties=names, timeout=timeout)
        if refresh
        else AskHosts(hosts=(host,))
    )
    found = asked(question, Host)
    if not found:
        raise no_host([host])
    _check(names, found)
    if as_json:
        print_json({one.name: _as_data(one, names) for one in found})
    else:
        _print(found, names)


def _names(host: Host) -> set[str]:
    return {definition.name for definition in host.properties} | set(host.readings)


def _check(names: tuple[str, ...], hosts: list[Host]) -> None:
    known = set().union(*(_names(host) for host in hosts))
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), 1)
            hint = f"Did you mean '{near[0]}'? " if near else ""
            raise EncampError(
                Code.USAGE,
                f"{hosts[0].name if len(hosts) == 1 else 'None of these hosts'} has"
                f"{' no' if len(hosts) == 1 else ' a'} property '{name}'.",
                f"{hint}'encamp properties {hosts[0].name}' lists them.",
            )


def _as_data(host: Host, names: tuple[str, ...]) -> dict[str, object]:
    definitions = {definition.name: definition for definition in host.properties}
    data: dict[str, object] = {}
    for name in names or sorted(_names(host)):
        reading, definition = host.readings.get(name), definitions.get(name)
        data[name] = {
            "value": reading.value if reading else None,
            "error": reading.error if reading else "never reported",
            "at": reading.at if reading else None,
            "unit": definition.unit if definition else "",
        }
    return data


def _print(hosts: list[Host], names: tuple[str, ...]) -> None:
    from encamp.cli.tables import clean, show, table
    from encamp.cli.values import age, reading_text
    from encamp.model.host import Presence

    columns = ["property", "value", "since", "every"]
    if len(hosts) > 1:
        columns.insert(0, "host")
    made = table(*columns, whole=("property", "since", "every"))
    for host in hosts:
        definitions = {definition.name: definition for definition in host.properties}
        for name in names or sorted(_names(host)):
            reading, definition = host.readings.get(name), definitions.get(name)
            row = [
                host.name,
                name,
                reading_text(definition, reading),
                age(reading, host.clock_offset),
                every(definition.ticks) if definition else "",
            ]
            made.add_row(*row[-len(columns) :])
    show(made)
    for host in hosts:
        if host.presence is not Presence.JOINED:
            reason = f": {clean(host.reason)}" if host.reason else ""
            print(f"{host.name} is {host.presence.value}{reason}. This is how it was.")


def every(ticks: float) -> str:
    from encamp.model.quantity import duration

    return duration(ticks) if ticks else "asked"
