"""A picture of simulations side by side: who waited for how long, and what was used when."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from encamp.model.errors import Code, EncampError
from encamp.sim.measures import Course

STYLE = {
    "svg.hashsalt": "encamp",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "lines.linewidth": 1.4,
}
COLOURS = ("#1f5fa8", "#d1722b", "#3b8f4f", "#7a4f9f", "#8a6d3b", "#666666")

TICKS = (1.0, 10.0, 60.0, 600.0, 3600.0, 86_400.0, 604_800.0, 6_048_000.0)
TICK_NAMES = ("1 s", "10 s", "1 min", "10 min", "1 h", "1 d", "1 w", "10 w")
UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"))
MOST_LABELS = 16
"""Bars that are labelled with what they stand for."""
LEAST = 0.1
"""Seconds: what waited for less is drawn as that."""


KINDS = {".svg": "svg", ".png": "png", ".pdf": "pdf"}
"""How files end, and what is drawn into them."""


def check(kind: str = ".svg") -> None:
    """Raises EncampError, if nothing of the kind can be drawn here."""
    if kind.lower() not in KINDS:
        known = ", ".join(KINDS)
        raise EncampError(
            Code.USAGE, f"No picture can be drawn into a file '*{kind}'.", f"Let it end in {known}."
        )
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise EncampError(
            Code.PROGRAM_MISSING,
            "A picture cannot be drawn: matplotlib is not installed.",
            "Install it with: pip install 'encamp[plots]'.",
        ) from None


def draw(courses: Sequence[Course], title: str, kind: str = ".svg") -> bytes:
    """Above: how many jobs waited for how long at most; then by class the mean of it.
    Below: how much of the site was used, and how much was waited for."""
    check()
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.0, 6.4), layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        grid = figure.add_gridspec(3, 2, height_ratios=(1.5, 1.0, 1.0))
        _draw_waits(figure.add_subplot(grid[0, 0]), courses)
        _draw_classes(figure.add_subplot(grid[0, 1]), courses)
        used = figure.add_subplot(grid[1, :])
        _draw_course(used, courses, "Processors in use", lambda course: course.used)
        _draw_idle(used, courses)
        queued = figure.add_subplot(grid[2, :], sharex=used)
        _draw_course(queued, courses, "Processors waited for", lambda course: course.queued)
        queued.set_xlabel(f"{_unit(courses)[1]} since the first job")
        handles, names = used.get_legend_handles_labels()
        figure.legend(handles, names, loc="upper right", ncols=len(courses), handlelength=1.2)
        written = io.BytesIO()
        # The same courses make the same file, whenever they are drawn.
        dated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
        form = KINDS[kind.lower()]
        figure.savefig(written, format=form, facecolor="white", dpi=150, metadata=dated[form])
    return written.getvalue()


def _draw_waits(axes: Any, courses: Sequence[Course]) -> None:
    for course, colour in zip(courses, _colours(courses), strict=True):
        waits = sorted(max(wait, LEAST) for several in course.waits.values() for wait in several)
        if not waits:
            continue
        # Few points draw the same line as many.
        step = max(1, len(waits) // 1000)
        shown = [*range(0, len(waits), step), len(waits) - 1]
        axes.plot(
            [waits[place] for place in shown],
            [(place + 1) / len(waits) * 100 for place in shown],
            color=colour,
            drawstyle="steps-post",
        )
    longest = max((course.measured.waiting.longest for course in courses), default=1.0)
    axes.set_xscale("log")
    axes.set_xticks(TICKS, TICK_NAMES)
    axes.minorticks_off()
    axes.set_xlim(LEAST, max(longest * 1.5, 10.0))
    axes.set_ylim(0, 101)
    axes.set_title("Jobs that waited at most so long, in %")
    _grid(axes, "both")


def _draw_classes(axes: Any, courses: Sequence[Course]) -> None:
    names = sorted({name for course in courses for name in course.waits})
    width = 0.8 / len(courses)
    means = [one.mean for course in courses for one in course.measured.by_class.values()]
    divisor, unit = _unit_of_time(max(means, default=0.0))
    for place, (course, colour) in enumerate(zip(courses, _colours(courses), strict=True)):
        by_class = course.measured.by_class
        heights = [by_class[name].mean / divisor if name in by_class else 0.0 for name in names]
        left = [number - 0.4 + (place + 0.5) * width for number in range(len(names))]
        bars = axes.bar(left, heights, width * 0.92, color=colour)
        if len(names) * len(courses) <= MOST_LABELS:
            axes.bar_label(
                bars, [_short(height * divisor) for height in heights], fontsize=7, padding=1
            )
    axes.set_xticks(range(len(names)), names)
    axes.tick_params(axis="x", length=0)
    axes.set_title(f"Mean time of waiting by class, in {unit}")
    _grid(axes, "y")


def _unit_of_time(seconds: float) -> tuple[float, str]:
    """In which so much is told in numbers that can be read."""
    if seconds >= 7200:
        return 3600.0, "hours"
    return (60.0, "minutes") if seconds >= 120 else (1.0, "seconds")


def _draw_course(axes: Any, courses: Sequence[Course], title: str, read: Any) -> None:
    divisor, _ = _unit(courses)
    for course, colour in zip(courses, _colours(courses), strict=True):
        axes.plot(
            [hour / divisor for hour in course.hours],
            [part * 100 for part in read(course)],
            color=colour,
            linewidth=1.0,
            label=course.measured.policy,
        )
    axes.set_title(f"{title}, in % of all")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    _grid(axes, "y")


def _draw_idle(axes: Any, courses: Sequence[Course]) -> None:
    """What idle machines had, where there were any: dotted."""
    divisor, _ = _unit(courses)
    for course, colour in zip(courses, _colours(courses), strict=True):
        if any(course.idle):
            axes.plot(
                [hour / divisor for hour in course.hours],
                [part * 100 for part in course.idle],
                color=colour,
                linewidth=1.0,
                linestyle=":",
            )
            axes.set_title("Processors in use, and of idle machines (dotted), in % of all")


def _short(seconds: float) -> str:
    for size, unit in UNITS:
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def _unit(courses: Sequence[Course]) -> tuple[float, str]:
    longest = max(course.measured.hours for course in courses)
    return (24.0, "days") if longest > 72 else (1.0, "hours")


def _colours(courses: Sequence[Course]) -> list[str]:
    return [COLOURS[place % len(COLOURS)] for place in range(len(courses))]


def _grid(axes: Any, which: str) -> None:
    axes.grid(axis=which, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
