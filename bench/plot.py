"""Drawing what was measured. Without matplotlib there is nothing drawn, and that is said."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.fit import Fit
from bench.measure import ImpossibleError
from encamp.sim.drawing import COLOURS, STYLE


@dataclass
class Curve:
    """Points of one colour: joined, or with a straight line fitted to them."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    fit: Fit | None = None


@dataclass
class Panel:
    title: str
    across: str
    up: str
    curves: Sequence[Curve]
    highest: float | None = None
    """Where the upward axis ends."""


def draw(panels: Sequence[Panel]) -> str:
    """The panels side by side, as SVG."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise ImpossibleError(
            "matplotlib is missing, which 'tools/setup bench' installs."
        ) from None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.4 * len(panels), 2.9), layout="constrained")
        for place, panel in enumerate(panels):
            _draw(figure.add_subplot(1, len(panels), place + 1), panel)
        written = io.StringIO()
        figure.savefig(written, format="svg", facecolor="white", metadata={"Date": None})
    return written.getvalue()


def _draw(axes: Any, panel: Panel) -> None:
    for curve, colour in zip(panel.curves, COLOURS, strict=False):
        if curve.fit is None:
            axes.plot(curve.xs, curve.ys, color=colour, label=curve.name)
            continue
        dots = {"marker": "o", "markersize": 4, "linestyle": "none", "clip_on": False}
        axes.plot(curve.xs, curve.ys, color=colour, label=curve.name, **dots)
        ends = [0, max(curve.xs)]
        axes.plot(ends, [curve.fit.at(x) for x in ends], color=colour, linewidth=1, alpha=0.6)
    axes.set_title(panel.title)
    axes.set_xlabel(panel.across)
    axes.set_ylabel(panel.up)
    axes.set_ylim(bottom=0, top=panel.highest)
    axes.set_xlim(left=0)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    if len(panel.curves) > 1:
        # Above, at the right of the title: nothing drawn is hidden.
        above = {"loc": "lower right", "bbox_to_anchor": (1.02, 0.97), "ncols": len(panel.curves)}
        axes.legend(**above, handlelength=1, columnspacing=1, handletextpad=0.4)
