"""Tables a person can read."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.style import StyleType
from rich.table import Table

from encamp.cli.cleaning import clean
from encamp.home import user_name
from encamp.model.machine import Machine, Phase, PhaseTime
from encamp.model.size import format_bytes

BAR_WIDTH = 30
SHORT_ID = 8

NARROWEST = 60
"""Letters in a line for which lists are made at least."""
USUAL = 80
"""Those of most terminals."""

MEANING = {
    Phase.CHECK: "image checked",
    Phase.START: "machine made",
    Phase.ACTIVATION: "guest waited for",
    Phase.INPUT: "input copied",
    Phase.COMMAND: "command run",
    Phase.OUTPUT: "output copied",
    Phase.END: "machine ended",
}


class CleanTable(Table):
    """Whatever stands in its cells, and whoever wrote it, tells a terminal nothing, and is in one
    line."""

    def add_row(
        self,
        *cells: RenderableType | None,
        style: StyleType | None = None,
        end_section: bool = False,
    ) -> None:
        cleaned = (clean(cell) if isinstance(cell, str) else cell for cell in cells)
        super().add_row(*cleaned, style=style, end_section=end_section)


def table(*columns: str, whole: Collection[str] = ()) -> Table:
    """`whole`: columns of short words, which are not to be folded for the sake of others."""
    made = CleanTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold", no_wrap=column in whole)
    return made


def show(made: Table, *, error: bool = False) -> None:
    out = console(error=error)
    if any(column.no_wrap for column in made.columns):
        out.width = max(out.width, USUAL)  # What is not folded would be cut.
    out.print(made)


def room(made: Table) -> int:
    """Letters in a line that the table leaves on standard output if nothing in it is folded."""
    out = console()
    return out.width - out.measure(made, options=out.options.update(width=9999)).maximum


class Screen(Console):
    """Text of others is no markup, and a reader that has gone is no failure."""

    def __init__(self, *, error: bool = False) -> None:
        stream = sys.stderr if error else sys.stdout
        super().__init__(file=stream, highlight=False, markup=False)
        # Off a terminal nothing is to be cut to a width that nobody has; and what is broken into
        # single letters is worse to read than lines that the terminal breaks.
        self.width = max(self.width, NARROWEST) if stream.isatty() else 160

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console(*, error: bool = False) -> Console:
    return Screen(error=error)


def some(names: Sequence[str], most: int = 3) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def print_timings(phases: Sequence[PhaseTime], *, error: bool) -> None:
    """Where the time went, with a bar for when each phase was on."""
    total = max((phase.started + phase.seconds for phase in phases), default=0.0) or 1e-9
    made = table("phase", "how", "ms", "")
    made.columns[2].justify = "right"
    for phase in phases:
        start = round(phase.started / total * BAR_WIDTH)
        length = max(1, round(phase.seconds / total * BAR_WIDTH)) if phase.seconds > 1e-4 else 0
        bar = " " * min(start, BAR_WIDTH - 1) + "█" * length
        made.add_row(
            MEANING[phase.phase], phase.how, f"{phase.seconds * 1000:.1f}", bar[:BAR_WIDTH]
        )
    made.add_section()
    made.add_row("in all", "", f"{total * 1000:.1f}", "")
    show(made, error=error)


def print_machine(machine: Machine, more: dict[str, str]) -> None:
    made = table("", "")
    made.show_header = False
    facts = {
        "id": machine.id,
        "name": machine.name,
        "owner": user_name(machine.owner),
        "state": f"{machine.state.value}: {machine.reason}",
        "since": f"{moment(machine.changed)} ({ago(machine.changed)} ago)",
        "made": moment(machine.created),
        "environment": machine.environment,
        "image": machine.image,
        "template": machine.template or "none: it was booted",
        "size": str(machine.size),
        "runs on": machine.runs_on,
        "storage": machine.storage.value,
        "network": machine.network,
    }
    if machine.ssh:
        facts["ssh"] = f"port {machine.ssh} of this host"
    for share in machine.shares:
        mode = "read-only" if share.readonly else "writable"
        facts[f"share {share.path}"] = f"{share.source} ({mode})"
    if machine.command:
        facts["command"] = " ".join(machine.command)
    for key, value in {**facts, **more}.items():
        made.add_row(key, value)
    show(made)
    if machine.phases:
        print()
        print_timings(machine.phases, error=False)


def moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def ago(seconds: float, now: float | None = None) -> str:
    passed = max(0, int((time.time() if now is None else now) - seconds))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if passed >= size:
            return f"{passed // size}{unit}"
    return f"{passed}s"


__all__ = [
    "ago",
    "clean",
    "format_bytes",
    "moment",
    "print_machine",
    "show",
    "table",
]
