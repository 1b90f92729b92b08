"""`encamp simulate`: tables, JSON, pictures, and what is said of wrong input."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from encamp.cli.main import run_command
from encamp.model.errors import Code
from tests.sim.sites import SMALL

JOBS = "jobs: {jobs: 30, every: 20s, run: 1m}\n"
POLICIES = "policies:\n  divided: {sharing: static}\n  shared: {}\n"


class Command:
    def __init__(self, directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.directory = directory
        self.capfd = capfd
        self.site = directory / "site.yaml"
        self.site.write_text(SMALL + JOBS + POLICIES)

    def __call__(self, *words: str | Path, code: int = 0) -> tuple[str, str]:
        """What it prints, and what it says."""
        found = run_command(["simulate", str(self.site), *map(str, words)])
        printed = self.capfd.readouterr()
        assert found == code, printed.err
        return printed.out, printed.err

    def write(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.write_text(text)
        return path


@pytest.fixture
def simulate(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    monkeypatch.setenv("ENCAMP_QUIET", "1")
    return Command(tmp_path, capfd)


def rows(printed: str) -> dict[str, list[str]]:
    """Cells of a table by the names of its rows."""
    found = {}
    for line in printed.splitlines():
        name, *cells = [cell.strip() for cell in line.split("  ") if cell.strip()] or [""]
        found[name] = cells
    return found


def test_policies_stand_side_by_side(simulate: Command) -> None:
    printed, _ = simulate()
    found = rows(printed)
    assert found["divided"] == ["shared"]
    assert found["jobs done"] == ["30 of 30", "30 of 30"]
    assert found["machines made"] == ["0", "30"]
    assert "one: waiting, mean" in found
    assert "other: waiting, 95 % below" in found


def test_json_has_all_figures(simulate: Command) -> None:
    printed, _ = simulate("--json")
    divided, shared = msgspec.json.decode(printed)
    assert (divided["policy"], divided["sharing"]) == ("divided", "static")
    assert shared["ended"] == {"done": 30}
    assert set(shared["waiting"]) == {
        *("jobs", "mean", "median", "p95", "longest", "slowdown", "slowdown_p95"),
    }
    assert set(shared["by_class"]) == {"one", "other"}
    assert 0 < shared["utilisation"] < 1
    assert shared["templates_made"] <= shared["images_copied"]


def test_same_seed_prints_the_same_and_another_one_does_not(simulate: Command) -> None:
    assert simulate("--seed", "7") == simulate("--seed", "7")
    assert simulate("--seed", "7") != simulate("--seed", "8")


def test_policies_in_files_are_tried_instead(simulate: Command) -> None:
    first = simulate.write("first.yaml", "rank: pack\n")
    second = simulate.write("second.yaml", "rank: spread\n")
    printed, _ = simulate("--policy", first, "--policy", second)
    assert rows(printed)["first"] == ["second"]


def test_trace_is_replayed_and_what_is_left_out_of_it_is_told(simulate: Command) -> None:
    fields = "-1 -1 -1 -1 -1 1 1 1 1 1 -1 -1 -1"
    lines = [f"{number} {900 - number} 0 60 1 {fields}" for number in range(1, 6)]
    trace = simulate.write("jobs.swf", "\n".join([*lines, f"6 999 0 -1 1 {fields}", ""]))
    simulate.site.write_text(SMALL + "trace: {environment: one}\n")
    printed, said = simulate("--trace", trace)
    assert rows(printed)["jobs done"] == ["5 of 5"]
    assert f"1 job of {trace} is left out" in said
    assert f"{trace}:2: earlier than the job before it" in said


def test_log_tells_what_happened(simulate: Command) -> None:
    log = simulate.directory / "log"
    simulate("--log", log)
    lines = log.read_text().splitlines()
    assert any("manager      writes: job0 running" in line for line in lines)
    assert any("ends: job0.0.1 exit code 0" in line for line in lines)


def test_refused_jobs_are_told_with_the_first_reason(simulate: Command) -> None:
    simulate.site.write_text(SMALL + "jobs: {jobs: 4, cpus: [64]}\n")
    printed, said = simulate()
    assert rows(printed)["jobs refused"] == ["4"]
    assert "4 jobs were refused; the first, job0:" in said


def test_faults_are_counted_and_promises_kept(simulate: Command) -> None:
    printed, _ = simulate("--faults", "--runs", "3")
    assert rows(printed)["simulations"] == ["3", "3"]
    assert "Every promise was kept." in printed
    found = msgspec.json.decode(simulate("--faults", "--runs", "3", "--json")[0])
    assert found["shared"]["seeds"] == [0, 1, 2]
    assert sum(found["shared"]["ended"].values()) == 90


def test_picture_is_drawn(simulate: Command) -> None:
    picture = simulate.directory / "picture.svg"
    simulate("--plot", picture)
    drawn = picture.read_text()
    assert drawn.startswith("<?xml")
    for text in ("divided", "shared", "Processors in use", "10 s"):
        assert text in drawn
    simulate("--plot", simulate.directory / "picture.PNG")
    assert (simulate.directory / "picture.PNG").read_bytes().startswith(b"\x89PNG")
    _, said = simulate("--plot", simulate.directory / "picture.gif", code=Code.USAGE.value)
    assert ".svg, .png, .pdf" in said


def test_missing_matplotlib_is_told_before_anything_is_simulated(
    simulate: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    log = simulate.directory / "log"
    _, said = simulate("--plot", "x.svg", "--log", log, code=Code.PROGRAM_MISSING.value)
    assert "pip install 'encamp[plots]'" in said
    assert not log.exists()


# ── wrong input ──────────────────────────────────────────────────────────────────────────────────


def test_site_without_jobs_needs_a_trace(simulate: Command) -> None:
    simulate.site.write_text(SMALL)
    _, said = simulate(code=Code.USAGE.value)
    assert "Name a trace with --trace, or describe made-up ones under 'jobs'." in said


def test_mistakes_in_files_are_told_with_their_places(simulate: Command) -> None:
    broken = simulate.write("broken.swf", "1 2 three\n")
    _, said = simulate("--trace", broken, code=Code.CONFIGURATION.value)
    assert f"{broken}:1:1: a job has 18 fields" in said
    policy = simulate.write("policy.yaml", "rnk: pack\n")
    _, said = simulate("--policy", policy, code=Code.CONFIGURATION.value)
    assert f"{policy}:1:1: there is no attribute 'rnk'" in said
    simulate.site.write_text(f"{SMALL}jobs: {{jobs: many}}\n")
    _, said = simulate(code=Code.CONFIGURATION.value)
    assert f"{simulate.site}:17:14: a whole number is expected here, not 'many'" in said


def test_rank_of_a_policy_that_makes_no_sense_is_told(simulate: Command) -> None:
    policy = simulate.write("policy.yaml", "rank: host.cpsu\n")
    _, said = simulate("--policy", policy, code=Code.USAGE.value)
    assert "cpsu" in said
    assert "cpus" in said


def test_requirements_of_a_rule_that_make_no_sense_are_told(simulate: Command) -> None:
    text = "trace:\n  rules: [{queues: '1', environment: one, requirements: host.cpsu > 1}]\n"
    simulate.site.write_text(SMALL + text)
    trace = simulate.write("jobs.swf", "1 0 0 60 1 -1 -1 -1 -1 -1 1 1 1 1 1 -1 -1 -1\n")
    printed, said = simulate("--trace", trace)
    assert "jobs refused" in printed
    assert "cpsu" in said


def test_log_that_cannot_be_written_is_told(simulate: Command) -> None:
    simulate("--log", "/nowhere/log", code=Code.INPUT_MISSING.value)


def test_runs_without_faults_make_no_sense(simulate: Command) -> None:
    simulate("--runs", "5", code=Code.USAGE.value)
