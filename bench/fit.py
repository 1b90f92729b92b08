"""A straight line through points, and how well it fits; how even a series is."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class Fit:
    slope: float
    intercept: float
    determination: float
    """R²: 1 if all points lie on the line."""

    def at(self, x: float) -> float:
        return self.intercept + self.slope * x


def straight_line(xs: Sequence[float], ys: Sequence[float]) -> Fit:
    """By least squares."""
    slope, intercept = statistics.linear_regression(xs, ys)
    flat = len(set(ys)) == 1
    return Fit(slope, intercept, 1.0 if flat else statistics.correlation(xs, ys) ** 2)


def peak_to_mean(values: Sequence[float]) -> float:
    return max(values) / statistics.fmean(values)


def variation(values: Sequence[float]) -> float:
    """The standard deviation as a part of the mean."""
    return statistics.pstdev(values) / statistics.fmean(values)
