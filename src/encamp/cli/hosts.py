"""`encamp hosts`: who is part of the site, and how they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from encamp.model.host import Host

LOAD, CPUS = "load1", "cpus"
MEMORY_FREE, MEMORY_TOTAL = "memory_free", "memory_total"
CPU_USED = "cpu_used"
SHOWN = (LOAD, CPUS, MEMORY_FREE, MEMORY_TOTAL, CPU_USED)
"""Properties that everybody wants to see, if a host has them."""

LARGE_OFFSET = 2.0
"""Seconds that a clock may be off before it is worth mentioning."""

NUMBERS = frozenset({"load", "memory free", "machines"})
ROOM_FOR_REMARKS = 36
"""Letters in a line that a remark needs to be read with pleasure."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Patterns = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PATTERN]...",
        help="Names, patterns such as 'node*', or @group.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    app.command()(hosts)


def hosts(pattern: Patterns = None, as_json: AsJson = False) -> None:
    """List the hosts of the site: presence, load, memory.

    A host that is lost or has left stays in the list, with the reason. The version is told if hosts
    differ in it; --json always tells all.

    Example: encamp hosts 'node*' @gpu
    """
    from encamp.cli.asking import asked, no_host
    from encamp.cli.cleaning import remark
    from encamp.cli.machines import print_json
    from encamp.cli.status import RESTORED
    from encamp.door.questions import AskHosts, AskStatus, Status
    from encamp.model.host import Host

    patterns = pattern or []
    brief = None if as_json else SHOWN
    found = asked(AskHosts(hosts=tuple(patterns), brief=brief), Host)
    if as_json:
        print_json(found)
        return
    if not found:
        raise no_host(patterns)
    _print(found)
    for status in asked(AskStatus(), Status):
        if status.restored:
            remark(f"{status.restored} {RESTORED}")


def _print(found: list[Host]) -> None:
    """Remarks stand beside the hosts if there is room for them, else below: what is in columns is
    not broken for their sake."""
    from encamp.cli.tables import room, show

    remarks = {host.name: remark for host in found if (remark := remark_text(host))}
    beside = room(_table(found, {})) >= ROOM_FOR_REMARKS
    show(_table(found, remarks if beside else {}))
    if not beside:
        for name, remark in remarks.items():
            print(f"{name}: {remark}")


def _table(found: list[Host], remarks: Mapping[str, str]) -> Table:
    """Without columns that would tell nothing, or of all hosts the same."""
    from encamp.cli.tables import table

    columns = {
        "host": [host.name for host in found],
        "presence": [presence_text(host) for host in found],
        "groups": [" ".join(host.groups) for host in found],
        "load": [load_text(host) for host in found],
        "memory free": [memory_text(host) for host in found],
        "machines": [str(len(host.machines)) for host in found],
        "version": [host.version for host in found],
        "": [remarks.get(host.name, "") for host in found],
    }
    if not any(columns["groups"]):
        del columns["groups"]
    if len(set(columns["version"])) == 1:
        del columns["version"]
    if not remarks:
        del columns[""]
    made = table(*columns, whole=columns.keys() - {"groups", ""})
    for place, name in enumerate(columns):
        if name in NUMBERS:
            made.columns[place].justify = "right"
    for cells in zip(*columns.values(), strict=True):
        made.add_row(*cells)
    return made


def presence_text(host: Host) -> str:
    from encamp.cli.tables import ago

    return f"{host.presence.value} {ago(host.since)}" if host.since else host.presence.value


def remark_text(host: Host) -> str:
    """Why it is not there, and what is wrong with it."""
    from encamp.cli.tables import clean

    return "; ".join(text for text in (clean(host.reason), clock_text(host)) if text)


def load_text(host: Host) -> str:
    from encamp.cli.values import number

    load, cpus = number(host.readings.get(LOAD)), number(host.readings.get(CPUS))
    if load is None:
        return "?" if cpus is None else f"? / {cpus:.0f}"
    return f"{load:.2f}" if cpus is None else f"{load:.2f} / {cpus:.0f}"


def memory_text(host: Host) -> str:
    from encamp.cli.tables import format_bytes
    from encamp.cli.values import number

    free, total = number(host.readings.get(MEMORY_FREE)), number(host.readings.get(MEMORY_TOTAL))
    texts = ["?" if size is None else format_bytes(size) for size in (free, total)]
    return texts[0] if total is None else " / ".join(texts)


def clock_text(host: Host) -> str:
    offset = host.clock_offset
    if abs(offset) < LARGE_OFFSET:
        return ""
    return f"its clock is {abs(offset):.0f} s {'ahead' if offset > 0 else 'behind'}"
