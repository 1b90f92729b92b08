"""The Perugia experiment again: what polling many clients costs the manager."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.fit import Fit, peak_to_mean, straight_line, variation
from bench.ground import Ground
from bench.measure import MIB, ImpossibleError
from bench.plot import Curve, Panel, draw
from bench.polling import Point, strain, watched
from bench.report import Figure, Goal, Plot, Report, Table, format_number
from bench.site import Enrolled, allow_connections, enrol, site
from encamp.model.errors import EncampError

TITLE = "what polling many clients costs the manager"

EXPLANATION = """
The experiment of the paper that the manager and its agents go back to (Servoli, Mariotti, Cefalà:
*A Proposal to Dynamically Manage Virtual Environments in Heterogeneous Computing Facilities*): the
manager asks all clients every 10 seconds, and each replies with one property of 10 kB or 100 kB,
other characters each time. Manager and server of the bus run as on a site, with the store on disk;
clients are agents that converse as every agent does, each with a connection of its own, up to
1,250 in one process. They give a sign of life every 10 seconds here, since all of them share the
two processors with what is measured; the manager's share of that is in the figures.

Everything is about the manager's process alone, averaged over the window: its processor time as the
kernel counts it, its memory at the end, and the bytes of its connection to the bus (content of TCP,
without headers). The lines in the drawing are fitted by least squares.

The paper shows its results as drawings and says of them: without a limit the spikes with 300
clients and 10 kB *reach over 3000 kB/s*; with a limit of 10 messages a second the traffic is
*on average 100 kB/s*, for 100 clients and for 300; and network, processor and memory *grow almost
linearly* with the number of clients. The second drawing is the paper's left and right graph. With
the limit 300 clients take 30 seconds to be asked once, so a poll begins before the one before has
ended; such a poll is left out.
"""

POLL = 10.0
WINDOW = 30.0
SETTLE = 12.0
"""Seconds before a window: a whole poll, and what is left of joining,"""
SETTLED_A_SECOND = 500
"""which takes longer with many."""
LIMIT = 10
SMALL, LARGE = 10_000, 100_000
COUNTS = (100, 200, 300, 1000, 3000, 10_000)
MOST_LARGE = int(os.environ.get("ENCAMP_BENCH_MOST_LARGE", "3000"))
"""So many of them reply with 100 kB, unless the variable says another number. 10,000 would make
100 MB a second; whether clients, the server of the bus and the manager can move that with the
processors they share was not measured."""
COMPARED = (100, 300)
"""Clients in the paper's graphs over time."""
PRESENCE = {"interval": "10s", "silence": "30s"}
ANSWERED = 0.95
"""Of the replies that were asked for: below that the machine does not keep up."""


@dataclass
class Measured:
    """The clients reply with so many bytes each."""

    size: str
    points: list[Point]


def measure(ground: Ground, *, quick: bool) -> Report:
    counts = (20, 40, 60) if quick else COUNTS
    window = 10.0 if quick else WINDOW
    allow_connections(2 * max(counts))
    report = Report()
    enrolled = enrol(ground.scratch / "config", max(counts))

    def points(name: str, size: int, clients: Sequence[int], limit: int | None) -> list[Point]:
        directory = ground.scratch / name
        return _points(directory, enrolled, size, clients, window, limit, report.remarks)

    heavy = [count for count in counts if count <= MOST_LARGE]
    small = Measured("10 kB", points("small", SMALL, counts, None))
    large = Measured("100 kB", points("large", LARGE, heavy, None))
    few = (counts[0], counts[2]) if quick else COMPARED
    limited = points("limited", SMALL, few, LIMIT)
    free = [point for point in small.points if point.clients in few]
    report.figures = [*_costs(small, max(counts)), *_evenness(free, limited)]
    report.tables = [
        _beside(small, free, limited),
        _table(small),
        _table(large),
        _fits([small, large]),
    ]
    try:
        report.plots = [_growth([small, large]), _over_time(free, limited)]
    except ImpossibleError as reason:
        report.remarks.append(f"Not drawn: {reason}")
    return report


def _points(
    directory: Path,
    enrolled: Enrolled,
    size: int,
    counts: Sequence[int],
    window: float,
    limit: int | None,
    remarks: list[str],
) -> list[Point]:
    """A site that grows, as far as the machine keeps up."""
    traffic: dict[str, object] = {"poll": f"{POLL:.0f}s"}
    if limit is not None:
        traffic["limit"] = limit
    points: list[Point] = []
    what = f"With replies of {size // 1000} kB"
    with site(directory, enrolled, {"traffic": traffic, "presence": PRESENCE}) as running:
        try:
            for count in counts:
                running.grow(count, size)
                time.sleep(SETTLE + count / SETTLED_A_SECOND)
                point = watched(running, count, window)
                if limit is None and point.replies < ANSWERED * count / POLL:
                    remarks.append(
                        f"{what} {count:,} clients are too many for this machine: of"
                        f" {count / POLL:,.0f} replies a second {point.replies:,.0f} came, and"
                        f" {strain(running)}."
                    )
                    break
                points.append(point)
        except (ImpossibleError, EncampError) as reason:
            remarks.append(f"{what} it did not go further: {reason} Then {strain(running)}.")
    return points


# ── figures ──────────────────────────────────────────────────────────────────────────────────────


THIRD = (Goal.AT_MOST, 1 / 3)
STRAIGHT = (Goal.AT_LEAST, 0.98)
FLAT = (Goal.AT_MOST, 1.25)


def _costs(small: Measured, wanted: int) -> list[Figure]:
    most = small.points[-1]
    # With fewer clients than it is meant for, a goal would say nothing.
    third = THIRD if most.clients == wanted else None
    name = f"{most.clients:,} clients, 10 kB"
    grows = _fit(small, lambda point: point.processor).determination
    return [
        Figure(f"{name}: of one processor", most.processor, "processors", third),
        Figure(f"{name}: a reply", most.processor / most.replies * 1e6, "µs of CPU"),
        Figure("straight line through the processor time, R²", grows, "", STRAIGHT),
    ]


def _evenness(free: list[Point], limited: list[Point]) -> list[Figure]:
    figures = [
        Figure(f"{point.clients} clients, no limit: spikes", point.peak, "kB/s") for point in free
    ]
    for point in limited:
        name = f"{point.clients} clients, {LIMIT} messages/s"
        figures += [
            Figure(f"{name}: mean", point.network, "kB/s"),
            Figure(f"{name}: peak / mean", peak_to_mean(point.received), goal=FLAT),
            Figure(f"{name}: variation", variation(point.received), "of the mean"),
        ]
    figures += [
        Figure(f"{point.clients} clients, no limit: peak / mean", peak_to_mean(point.received))
        for point in free
    ]
    return figures


# ── tables ───────────────────────────────────────────────────────────────────────────────────────


def _beside(small: Measured, free: list[Point], limited: list[Point]) -> Table:
    """What the paper says in words and numbers, and what was found here."""
    grown = [_fit(small, read).determination for _, read in GROWING.values()]
    spikes = [
        (
            f"{point.clients} clients of 10 kB, no limit: spikes",
            "over 3000 kB/s" if point.clients == 300 else "",
            f"{point.peak:,.0f} kB/s",
        )
        for point in free
    ]
    even = [
        (
            f"{point.clients} clients of 10 kB, {LIMIT} messages/s: mean",
            "100 kB/s" if point.clients == 100 else "the same graph",
            f"{point.network:,.0f} kB/s",
        )
        for point in limited
    ]
    linear = ("growth with the clients", "almost linear", f"R² of {min(grown):.3f} or more")
    return Table(("", "paper", "here"), [*spikes, *even, linear])


def _table(measured: Measured) -> Table:
    head = (
        f"clients, {measured.size}",
        *("replies/s", "received", "sent", "processor", "resident", "virtual", "NATS server"),
    )
    rows = [
        (
            f"{point.clients:,}",
            f"{point.replies:,.0f}",
            f"{point.network:,.0f} kB/s",
            f"{format_number(point.sent)} kB/s",
            f"{point.processor:.1%}",
            f"{point.resident / MIB:.0f} MiB",
            f"{point.virtual / MIB:.0f} MiB",
            f"{point.server:.1%}",
        )
        for point in measured.points
    ]
    return Table(head, rows)


GROWING: dict[str, tuple[str, Callable[[Point], float]]] = {
    "Network": ("kB/s received", lambda point: point.network),
    "Processor": ("% of one processor", lambda point: point.processor * 100),
    "Memory, resident": ("MiB", lambda point: point.resident / MIB),
    "Memory, virtual": ("MiB", lambda point: point.virtual / MIB),
}
"""What grows with the number of clients, and its unit."""


def _fit(measured: Measured, read: Callable[[Point], float]) -> Fit:
    points = measured.points
    return straight_line([point.clients for point in points], [read(point) for point in points])


def _fits(all_measured: Sequence[Measured]) -> Table:
    rows = []
    for measured in all_measured:
        for name, (unit, read) in GROWING.items():
            if len(measured.points) < 2:
                continue
            fit = _fit(measured, read)
            rows.append(
                (
                    f"{name}, {measured.size}",
                    f"{format_number(fit.slope * 1000)} {unit}",
                    f"{format_number(fit.intercept)} {unit}",
                    f"{fit.determination:.4f}",
                )
            )
    return Table(("straight line", "for 1,000 clients", "for none", "R²"), rows)


# ── drawings ─────────────────────────────────────────────────────────────────────────────────────


def _growth(all_measured: Sequence[Measured]) -> Plot:
    panels = [
        Panel(
            name,
            "clients",
            unit,
            [
                Curve(
                    measured.size,
                    [point.clients for point in measured.points],
                    [read(point) for point in measured.points],
                    _fit(measured, read),
                )
                for measured in all_measured
                if len(measured.points) > 1
            ],
        )
        for name, (unit, read) in GROWING.items()
        if name != "Memory, virtual"
    ]
    shows = "Network, processor and memory of the manager against the number of clients"
    return Plot("site-traffic", shows, draw(panels))


def _over_time(free: list[Point], limited: list[Point]) -> Plot:
    panels = [
        Panel(
            title,
            "seconds",
            "kB/s received",
            [
                Curve(f"{point.clients} clients", range(len(point.received)), point.received)
                # The larger first, for the other not to be hidden.
                for point in reversed(points)
            ],
            highest,
        )
        for title, points, highest in (
            ("No limit", free, None),
            (f"{LIMIT} messages a second", limited, 5 * LIMIT * SMALL / 1000),
        )
    ]
    shows = "Traffic of the manager over time, without a limit and with one"
    return Plot("site-traffic-limit", shows, draw(panels))
