"""What `encamp top` shows: a site at one moment, drawn to fit a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from encamp.cli.events import STYLES
from encamp.cli.hosts import CPU_USED, CPUS, LOAD, MEMORY_FREE, MEMORY_TOTAL, clock_text
from encamp.cli.job_views import what as what_of
from encamp.cli.tables import SHORT_ID, ago, clean, format_bytes
from encamp.cli.values import number
from encamp.door.questions import SiteMachine, Status
from encamp.model.command import CommandRecord, CommandState
from encamp.model.event import Event
from encamp.model.host import Host, Presence
from encamp.model.machine import State
from encamp.model.request import RequestRecord, RequestState

WIDE = 130
"""Columns from which on jobs and events stand beside hosts and machines."""
RUN = "request.run"
"""The command by which a machine of a job is made, on each of its hosts."""
FRAME = 3
"""Lines that a panel needs beside its rows: its border, and the heads of its columns."""
BORDER = 4
"""Columns that a panel needs beside what is in it."""
GAP = 2
LEAST_BAR, MOST_BAR = 4, 36
LONGEST_NAME = 24
LONGEST_JOB, LONGEST_USER, LONGEST_STATE, LEAST_REASON = 20, 10, 8, 16
HOST_COLUMNS = {
    "host": 4,
    "": 9,
    "processors": LEAST_BAR + 5,
    "load": 7,
    "memory": LEAST_BAR + 5,
    "free": 8,
    "machines": 8,
}
"""What is told of hosts, and how wide each column is at least."""
RIGHT = frozenset({"load", "free", "machines"})
EIGHTHS = " ▏▎▍▌▋▊▉"

PRESENCE_STYLES = {Presence.JOINED: "green", Presence.LEFT: "yellow", Presence.LOST: "bold red"}
STATE_STYLES = {
    State.STARTING: "yellow",
    State.RUNNING: "green",
    State.PAUSED: "cyan",
    State.SUSPENDED: "cyan",
    State.STOPPED: "dim",
    State.FAILED: "red",
}
REQUEST_STYLES = {
    RequestState.WAITING: "yellow",
    RequestState.CLAIMING: "yellow",
    RequestState.STARTING: "cyan",
    RequestState.RUNNING: "green",
}
PRINTED_EVENTS = 10
"""The latest ones, where there is no screen to fill."""
COMMAND_STYLES = {CommandState.WAITING: "yellow", CommandState.RUNNING: "green"}


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All that is shown."""

    at: float
    status: Status
    hosts: list[Host]
    machines: list[SiteMachine]
    requests: list[RequestRecord]
    """Those that are not over, the latest first."""
    commands: list[CommandRecord]
    """Those under way."""
    events: list[Event]
    trouble: str = ""
    """Why this is not how things are any more."""


class View:
    """Draws a snapshot: all of it, or what fits into a whole screen, with the keys below."""

    def __init__(self, snapshot: Snapshot, *, keys: str = "") -> None:
        self._snapshot = snapshot
        self._keys = keys

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        snapshot = self._snapshot
        yield _head(snapshot, options.max_width)
        # Whatever stands around a view takes its height away, but not the largest there may be.
        height = max(8, options.max_height - 2) if self._keys else None
        if options.max_width >= WIDE:
            yield _two_columns(snapshot, options.max_width, height)
        else:
            yield _one_column(snapshot, options.max_width, height)
        if self._keys:
            yield Text(f" {self._keys}", "dim")


def _one_column(snapshot: Snapshot, width: int, height: int | None) -> RenderableType:
    wanted = [
        len(snapshot.hosts),
        _queue_length(snapshot),
        len(snapshot.machines),
        max(3, _events_wanted(snapshot, height)),
    ]
    rows = share(None if height is None else height - 4 * FRAME + 1, wanted, (4, 3, 2, 2))
    return Group(
        _hosts(snapshot, rows[0], width),
        _queue(snapshot, rows[1]),
        _machines(snapshot, rows[2]),
        _events(snapshot, rows[3]),
    )


def _two_columns(snapshot: Snapshot, width: int, height: int | None) -> RenderableType:
    left = share(
        None if height is None else height - 2 * FRAME,
        [len(snapshot.hosts), len(snapshot.machines)],
        (3, 2),
        fill=True,
    )
    right = share(
        None if height is None else height - 2 * FRAME + 1,
        [_queue_length(snapshot), max(3, _events_wanted(snapshot, height))],
        (1, 1),
        fill=True,
    )
    half = width // 2
    grid = Table.grid(expand=True)
    grid.add_column(width=width - half)
    grid.add_column(width=half)
    grid.add_row(
        Group(_hosts(snapshot, left[0], width - half), _machines(snapshot, left[1])),
        Group(_queue(snapshot, right[0]), _events(snapshot, right[1])),
    )
    return grid


def share(
    room: int | None, wanted: Sequence[int], weights: Sequence[int], *, fill: bool = False
) -> list[int]:
    """Rows for each of several lists: as many as they want if there is room, else by weight, where
    what one does not need goes to the others. `fill`: the last gets what is left."""
    wanted = [max(1, number) for number in wanted]
    if room is None:
        return list(wanted)
    room = max(room, len(wanted))
    given = [1] * len(wanted)
    for _ in range(room - len(wanted)):
        hungry = [place for place in range(len(wanted)) if given[place] < wanted[place]]
        if not hungry:
            break
        given[min(hungry, key=lambda place: given[place] / weights[place])] += 1
    if fill:
        given[-1] += room - sum(given)
    return given


def _head(snapshot: Snapshot, width: int) -> RenderableType:
    status = snapshot.status
    left = Text.assemble((" encamp ", "bold reverse"), " ", (clean(status.site), "bold"))
    wrong = snapshot.trouble or (f"store: {status.store}" if status.store else "")
    if wrong:
        left.append(f"  {clean(wrong)}", "bold red")
    for presence in Presence:
        count = status.hosts.get(presence.value, 0)
        if count or presence is Presence.JOINED:
            left.append(f"  {count} {presence.value}", PRESENCE_STYLES[presence])
    waiting = status.requests.get(RequestState.WAITING.value, 0)
    left.append(f"  {waiting} waiting", "yellow" if waiting else "")
    left.append(f"  {status.machines} machines  {status.commands_under_way} commands")
    if width >= WIDE:
        left.append(f"  {status.triggers} triggers  up {ago(status.started, snapshot.at)}")
        left.append(f"  Encamp {clean(status.version)}", "dim")
    clock = Text(time.strftime("%H:%M:%S ", time.localtime(snapshot.at)), "dim")
    grid = Table.grid(expand=True)
    grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    grid.add_column(justify="right", no_wrap=True)
    grid.add_row(left, clock)
    return grid


def _hosts(snapshot: Snapshot, rows: int, width: int) -> Panel:
    """Not a table: the reason why a host is not there runs on over the columns of others."""
    hosts = _most_important(snapshot.hosts, rows)
    narrow = [_host_cells(host, LEAST_BAR, snapshot.at) for host in hosts]
    missing = width - BORDER - sum(_widths(narrow)) - GAP * (len(HOST_COLUMNS) - 1)
    bar_width = max(LEAST_BAR, min(MOST_BAR, LEAST_BAR + missing // 2))
    cells = [_host_cells(host, bar_width, snapshot.at) for host in hosts]
    widths = _widths(cells)
    heads = [Text(head, "dim") for head in HOST_COLUMNS]
    lines = Group(*(_line(row, widths) for row in [heads, *cells]))
    return _panel("hosts", lines, rows, len(snapshot.hosts), len(hosts))


def _widths(rows: Sequence[Sequence[Text]]) -> list[int]:
    """Of each column; a row's last cell counts only if it stands in the last column."""
    widths = [max(len(head), least) for head, least in HOST_COLUMNS.items()]
    for row in rows:
        whole = row if len(row) == len(widths) else row[:-1]
        for place, cell in enumerate(whole):
            widths[place] = max(widths[place], cell.cell_len)
    return widths


def _line(row: Sequence[Text], widths: Sequence[int]) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    for place, (cell, width, head) in enumerate(zip(row, widths, HOST_COLUMNS, strict=False)):
        if place < len(row) - 1 or len(row) == len(widths):
            cell.align("right" if head in RIGHT else "left", width)
        line.append(" " * (GAP if place else 0)).append_text(cell)
    return line


def _most_important(hosts: list[Host], rows: int) -> list[Host]:
    """By name, if all can be seen; else those in trouble first, then the busiest."""
    if len(hosts) <= rows:
        return sorted(hosts, key=lambda host: host.name)
    order = {Presence.LOST: 0, Presence.JOINED: 1, Presence.LEFT: 2}

    def rank(host: Host) -> tuple[int, float, str]:
        return order[host.presence], -(_used(host) or 0.0), host.name

    return sorted(hosts, key=rank)[:rows]


def _used(host: Host) -> float | None:
    return number(host.readings.get(CPU_USED))


def _host_cells(host: Host, bar_width: int, now: float) -> list[Text]:
    """One for each column. Of a host that is not there the last one is the reason."""
    name = Text(clean(host.name), "bold")
    name.truncate(LONGEST_NAME, overflow="ellipsis")
    presence = Text(host.presence.value, PRESENCE_STYLES[host.presence])
    if host.presence is not Presence.JOINED:
        ago_text = f"{ago(host.since, now)} ago" if host.since else ""
        why = ": ".join(part for part in (ago_text, clean(host.reason)) if part)
        return [name, presence, Text(why, "dim")]
    used, load = _used(host), number(host.readings.get(LOAD))
    cpus = number(host.readings.get(CPUS))
    free = number(host.readings.get(MEMORY_FREE))
    total = number(host.readings.get(MEMORY_TOTAL))
    if clock_text(host):
        presence = Text("clock off", "yellow")
    if cpus is not None:
        load_cell = Text(f"{load:.1f}/{cpus:.0f}" if load is not None else f"?/{cpus:.0f}")
    else:
        load_cell = Text("?" if load is None else f"{load:.1f}")
    return [
        name,
        presence,
        bar(used, bar_width),
        load_cell,
        bar(None if free is None or not total else 1 - free / total, bar_width),
        Text("?" if free is None else format_bytes(free)),
        Text(str(len(host.machines))),
    ]


def bar(fraction: float | None, width: int) -> Text:
    """`██████▌     54%`"""
    if fraction is None:
        return Text("?".rjust(width + 5), "dim")
    fraction = min(1.0, max(0.0, fraction))
    filled, eighths = divmod(round(fraction * width * 8), 8)
    blocks = "█" * filled + (EIGHTHS[eighths] if eighths else "")
    style = "red" if fraction >= 0.9 else "yellow" if fraction >= 0.7 else "green"
    return Text.assemble((blocks, style), ("·" * (width - len(blocks)), "dim"), f"{fraction:5.0%}")


def _machines(snapshot: Snapshot, rows: int) -> Panel:
    made = _table("id", "machine", "host", "environment", "size", "state", "for", slack=3)
    latest = sorted(snapshot.machines, key=lambda found: -found.machine.changed)[:rows]
    for found in latest:
        machine = found.machine
        state = Text(machine.state.value, STATE_STYLES[machine.state])
        made.add_row(
            Text(clean(machine.id[:SHORT_ID]), "dim"),
            Text(clean(machine.name), "bold"),
            Text(clean(found.host)),
            Text(clean(machine.environment)),
            Text(f"{machine.size.cpus} cpu {format_bytes(machine.size.memory)}"),
            state if found.known else Text(f"{machine.state.value}?", "dim"),
            Text(ago(machine.changed, snapshot.at)),
        )
    return _panel("machines", made, rows, len(snapshot.machines), len(latest))


def _queue_length(snapshot: Snapshot) -> int:
    return max(_jobs_under_way(snapshot), len(snapshot.requests)) + len(_others(snapshot))


def _jobs_under_way(snapshot: Snapshot) -> int:
    return sum(snapshot.status.requests.values())


def _others(snapshot: Snapshot) -> list[CommandRecord]:
    """Commands beside those by which the machines of jobs are made."""
    return [record for record in snapshot.commands if record.name != RUN]


def _queue(snapshot: Snapshot, rows: int) -> Panel:
    """What waits stands before what runs: for that one looks here."""
    made = _table("id", "job or command", "by", "state", "for", "where, or why not", slack=5)
    made.columns[1].max_width, made.columns[2].max_width = LONGEST_JOB, LONGEST_USER
    made.columns[3].min_width, made.columns[5].min_width = LONGEST_STATE, LEAST_REASON
    # Whoever has waited for longest comes first.
    oldest = snapshot.requests[::-1]
    waiting = [record for record in oldest if record.state is RequestState.WAITING]
    placed = [record for record in oldest if record.state is not RequestState.WAITING]
    entries = [_request_cells(record, snapshot.at) for record in (*waiting, *placed)]
    entries += [_command_cells(record, snapshot.at) for record in _others(snapshot)]
    shown = entries[:rows]
    for cells in shown:
        made.add_row(*cells)
    title = "jobs, and commands under way"
    return _panel(title, made, rows, _queue_length(snapshot), len(shown))


def _request_cells(record: RequestRecord, now: float) -> tuple[Text, ...]:
    hosts = ", ".join(dict.fromkeys(part.host for part in record.parts))
    request = record.request
    what = f"{request.environment} {what_of(record)}"
    waits = record.state is RequestState.WAITING
    return (
        Text(request.id[:SHORT_ID], "dim"),
        Text(clean(what), "bold"),
        Text(clean(request.owner)),
        Text(record.state.value, REQUEST_STYLES.get(record.state, "")),
        Text(ago(request.submitted if waits else record.changed, now)),
        Text(clean(record.reason.sentence if waits else hosts)),
    )


def _command_cells(record: CommandRecord, now: float) -> tuple[Text, ...]:
    return (
        Text(record.id[:SHORT_ID], "dim"),
        Text(clean(record.name), "bold"),
        Text(clean(record.issuer)),
        Text(record.state.value, COMMAND_STYLES.get(record.state, "")),
        Text(ago(record.started or record.issued, now)),
        Text(clean(record.host)),
    )


def _events_wanted(snapshot: Snapshot, height: int | None) -> int:
    """Printed once, only the latest are told: 'encamp events' has them all."""
    there = len(snapshot.events)
    return there if height is not None else min(there, PRINTED_EVENTS)


def _events(snapshot: Snapshot, rows: int) -> Panel:
    made = _table("", "", "", slack=2)
    made.show_header = False
    latest = snapshot.events[-rows:] if rows else []
    for event in reversed(latest):
        made.add_row(
            Text(time.strftime("%H:%M:%S", time.localtime(event.at)), "dim"),
            Text(event.kind.value, STYLES.get(event.kind, "cyan")),
            Text(clean(event.sentence)),
        )
    return _panel("events", made, rows - 1, 0, 0)


def _table(*columns: str, slack: int) -> Table:
    """`slack`: the column that takes the room which the others do not need."""
    made = Table(box=None, expand=True, pad_edge=False, header_style="dim")
    for place, column in enumerate(columns):
        ratio = 1 if place == slack else None
        made.add_column(column, no_wrap=True, overflow="ellipsis", ratio=ratio)
    return made


def _panel(title: str, made: RenderableType, rows: int, total: int, shown: int) -> Panel:
    """Always of the same height, so that nothing jumps when rows come and go."""
    more = f" · {total - shown} more" if total > shown else ""
    heading = Text.assemble((title, "bold cyan"), (more, "dim"))
    height = rows + FRAME
    return Panel(
        made, title=heading, title_align="left", height=height, box=box.ROUNDED, border_style="dim"
    )
