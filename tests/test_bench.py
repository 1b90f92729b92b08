"""The arithmetic of the benchmarks, and how their results are kept."""

from __future__ import annotations

import pytest

from bench.measure import KIB, Series, growth_per_step, paired_ratio, parse_rollup, ratio
from bench.report import Figure, Goal, Report, format_number, merge, section

ROLLUP = """\
55ff0000-7fff0000 ---p 00000000 00:00 0                          [rollup]
Rss:               50000 kB
Pss:               40000 kB
Anonymous:         30000 kB
"""


def test_ratio_is_of_medians_so_one_slow_sample_does_not_matter() -> None:
    one = Series("one", "ms", [10, 11, 900])
    other = Series("other", "ms", [22, 21, 23])
    assert ratio(one, other) == pytest.approx(0.5)


def test_what_slows_both_sides_of_a_round_does_not_change_their_ratio() -> None:
    one = Series("one", "per second", [10, 5, 20])
    other = Series("other", "per second", [20, 10, 40])
    assert paired_ratio(one, other) == pytest.approx(0.5)


def test_middle_half_of_a_single_sample_is_that_sample() -> None:
    assert Series("one", "ms", [7]).middle_half == (7, 7)
    assert Series("many", "ms", [1, 2, 3, 4, 5]).middle_half == (2, 4)


def test_growth_is_the_slope_and_not_the_height() -> None:
    assert growth_per_step([(25, 1000.0), (50, 1050.0), (75, 1100.0)]) == pytest.approx(2)
    assert growth_per_step([(25, 5e9), (50, 5e9), (75, 5e9)]) == pytest.approx(0)


def test_one_jump_is_not_growth() -> None:
    samples = [(step, 1000.0 if step < 20 else 9000.0) for step in range(24)]
    assert growth_per_step(samples) == pytest.approx(0)


def test_own_memory_leaves_out_what_a_file_stands_behind() -> None:
    memory = parse_rollup(ROLLUP)
    assert (memory.own, memory.proportional) == (30000 * KIB, 40000 * KIB)


@pytest.mark.parametrize(
    ("kind", "value", "met"),
    [
        (Goal.AT_MOST, 1.15, True),
        (Goal.AT_MOST, 1.16, False),
        (Goal.AT_LEAST, 1.15, True),
        (Goal.AT_LEAST, 1.14, False),
    ],
)
def test_goals_are_met_from_the_right_side(kind: Goal, value: float, met: bool) -> None:
    assert Figure("it", value, goal=(kind, 1.15)).met is met


def test_figure_without_goal_has_no_verdict() -> None:
    assert Figure("it", 3.0).verdict == ""


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (0.04213, "0.042"), (1.149, "1.15"), (42.42, "42.4"), (531.3, "531")],
)
def test_numbers_show_no_more_digits_than_are_known(value: float, shown: str) -> None:
    assert format_number(value) == shown


def test_sections_that_were_not_measured_again_are_kept() -> None:
    def made(name: str, value: float) -> str:
        report = Report([Figure("it", value)], [Series("side", "ms", [1, 2])], ["a remark"])
        return section(name, "a title", report, "What it means.", "a machine")

    first = merge("", {"b": made("b", 1), "a": made("a", 2)}, ["a", "b"])
    assert first.index("## a: ") < first.index("## b: ")
    second = merge(first, {"a": made("a", 3)}, ["a", "b"])
    assert made("a", 3) in second
    assert made("b", 1) in second
    assert made("a", 2) not in second
    assert merge(second, {}, ["a", "b"]) == second
