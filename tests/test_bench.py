"""The arithmetic of the benchmarks, and how their results are kept."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import pytest

from bench.fit import peak_to_mean, straight_line, variation
from bench.measure import KIB, Series, growth_per_step, paired_ratio, parse_rollup, ratio
from bench.network import Line
from bench.processes import family, family_seconds, held, processor_seconds, running
from bench.report import Figure, Goal, Plot, Report, Table, format_number, merge, section

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


def test_straight_line_finds_what_the_points_lie_on() -> None:
    fit = straight_line([100, 200, 300], [12, 22, 32])
    assert fit.slope == pytest.approx(0.1)
    assert fit.intercept == pytest.approx(2)
    assert fit.determination == pytest.approx(1)
    assert fit.at(1000) == pytest.approx(102)
    assert straight_line([1, 2, 3, 4], [1, 0, 1, 0]).determination < 0.5


def test_even_traffic_has_no_peaks_and_no_variation() -> None:
    assert (peak_to_mean([100, 100]), variation([100, 100])) == (1, 0)
    assert peak_to_mean([0, 0, 0, 400]) == pytest.approx(4)
    assert variation([0, 200]) == pytest.approx(1)


def test_tables_and_plots_are_part_of_the_section() -> None:
    report = Report(tables=[Table(("one", "two"), [("1", "2")])], plots=[Plot("it", "It.", "")])
    shown = section("a", "a title", report, "What it means.", "a machine")
    assert "| 1   | 2   |" in shown
    assert "![It.](it.svg)" in shown


def test_processes_are_watched_with_their_children_and_ended_with_them(tmp_path: Path) -> None:
    child = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    parent = (
        "import subprocess, sys, time;"
        f"subprocess.run([sys.executable, '-c', {child!r}]);"
        "subprocess.Popen(['sleep', '900']); print('ready', flush=True); time.sleep(900)"
    )
    log = tmp_path / "log"
    with running([sys.executable, "-c", parent], log) as process:
        while "ready" not in log.read_text():
            time.sleep(0.01)
        members = family(process.pid)
        assert family_seconds(process.pid) >= processor_seconds(process.pid) + 0.1
        assert held(process.pid).virtual >= held(process.pid).resident > 1_000_000
    assert len(members) == 2
    while any(map(_runs, members)):
        time.sleep(0.01)  # What was killed ends in its own time.


def _runs(pid: int) -> bool:
    """Whoever started it may not have taken note of its end yet."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_only_what_a_process_receives_from_a_port_counts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client, server.accept()[0] as other:
            line = Line(os.getpid(), port)
            before = line.carried()
            other.sendall(bytes(5000))
            client.recv(5000, socket.MSG_WAITALL)
            client.sendall(bytes(700))
            other.recv(700, socket.MSG_WAITALL)
            while (carried := line.carried() - before).sent < 700:
                time.sleep(0.01)  # It counts once it is acknowledged.
    assert (carried.received, carried.sent) == (5000, 700)
