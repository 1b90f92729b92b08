"""What a benchmark found, as a person reads it: on the terminal and in docs/benchmarks.md."""

from __future__ import annotations

import datetime
import enum
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.measure import Series
from encamp.machines.template import qemu_version
from encamp.model.size import format_bytes

INTRODUCTION = """\
# Benchmarks

Written by `python -m bench --write`; `make bench` runs the same without writing. Every comparison
has both sides measured in one run, in turns, on the same template, and is a ratio of medians.
Absolute times are given as background: they belong to one machine on one day.

The other side of most comparisons is a *bare script* (`bench/bare.py`): it starts QEMU with the
command line that Encamp uses, restores the template's state, speaks raw lines with QEMU and raw
frames with the guest, and does nothing else. It keeps no records, checks nothing, runs QEMU as
whoever calls it and would leave everything behind if it were killed.
"""


class Goal(enum.Enum):
    AT_MOST = "at most"
    AT_LEAST = "at least"


@dataclass
class Figure:
    """One result, with what it is meant to be if there is such a thing."""

    what: str
    value: float
    unit: str = "x"
    goal: tuple[Goal, float] | None = None

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        kind, bound = self.goal
        return self.value <= bound if kind is Goal.AT_MOST else self.value >= bound

    @property
    def shown(self) -> str:
        return f"{format_number(self.value)} {self.unit}"

    @property
    def shown_goal(self) -> str:
        if self.goal is None:
            return ""
        kind, bound = self.goal
        return f"{kind.value} {format_number(bound)}"

    @property
    def verdict(self) -> str:
        return {None: "", True: "met", False: "missed"}[self.met]


@dataclass
class Table:
    """Values that belong side by side."""

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@dataclass
class Plot:
    """A drawing beside the document."""

    name: str
    """Of its file, without the ending."""
    shows: str
    svg: str


@dataclass
class Report:
    """What one benchmark found."""

    figures: list[Figure] = field(default_factory=list)
    background: list[Series] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)


def format_number(value: float) -> str:
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    digits = 1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 3
    return f"{value:.{digits}f}"


def machine() -> str:
    """The machine this is measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    version = re.match(r"[\d.]+", platform.release())
    return (
        f"{os.cpu_count()} x {names[0] if names else platform.machine()},"
        f" {format_bytes(round(pages / 2**30, 1) * 2**30)},"
        f" Linux {version[0].rstrip('.') if version else platform.release()},"
        f" Python {platform.python_version()}, QEMU {qemu_version().split()[0]}"
    )


def section(name: str, title: str, report: Report, explanation: str, circumstances: str) -> str:
    """One benchmark's part of the document."""
    today = datetime.datetime.now(datetime.UTC).date()
    lines = [f"## {name}: {title}", "", f"Measured on {today}: {circumstances}.", ""]
    lines += _table(
        ("figure", "measured", "goal", ""),
        [(f.what, f.shown, f.shown_goal, f.verdict) for f in report.figures],
    )
    if report.background:
        lines += ["", "Background:", ""]
        lines += _table(("what", "median", "middle half", "samples"), map(_row, report.background))
    for table in report.tables:
        lines += ["", *_table(table.head, table.rows)]
    for plot in report.plots:
        lines += ["", f"![{plot.shows}]({plot.name}.svg)"]
    lines += [""] if report.remarks else []
    lines += [f"- {remark}" for remark in report.remarks]
    return "\n".join([*lines, "", explanation.strip(), ""])


def _row(series: Series) -> tuple[str, ...]:
    low, high = series.middle_half
    return (
        series.name,
        f"{format_number(series.median)} {series.unit}",
        f"{format_number(low)} to {format_number(high)}" if len(series.values) > 1 else "",
        str(len(series.values)),
    )


def _table(head: tuple[str, ...], rows: object) -> list[str]:
    assert hasattr(rows, "__iter__")
    cells = [head, *rows]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(head))]

    def line(row: tuple[str, ...]) -> str:
        return "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"

    return [line(head), line(tuple("-" * width for width in widths)), *map(line, cells[1:])]


def merge(document: str, sections: dict[str, str], order: list[str]) -> str:
    """The document with new sections in place of old ones; those not measured stay."""
    kept = {}
    for part in re.split(r"^(?=## )", document, flags=re.MULTILINE)[1:]:
        name = part.removeprefix("## ").partition(":")[0]
        kept[name] = part.rstrip() + "\n"
    kept |= sections
    return "\n".join([INTRODUCTION, *(kept[name] for name in order if name in kept)])
