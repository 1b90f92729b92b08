"""Triggers on simulated sites: judged by the real engine, under a clock that does not wait."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from encamp.cli.main import run_command
from encamp.model.errors import Code, EncampError
from encamp.model.size import MIB, Size
from encamp.sim.drawing import draw
from encamp.sim.measures import Course
from encamp.sim.simulation import Simulation
from encamp.sim.site import Compared
from encamp.sim.site_file import read_site
from encamp.sim.workload import SimulatedJob, made_up
from tests.sim.sites import EXAMPLES, ROOT, SMALL, described

SHARED = SMALL.replace("    clone", "    reuse: true\n    clone")
KEEP_TWO = """
triggers:
  keep_ready:
    when: environment.reuse and environment.idle < 2
    do: place(environment.name, count=2 - environment.idle, owner='somebody')
    every: 1m
"""
SOON = 0.2
SIZE = Size(1, 1024 * MIB)


def job(number: int, submitted: float, **more: object) -> SimulatedJob:
    given = {"environment": "one", "size": SIZE, "owner": "somebody", "run": 100.0, **more}
    return SimulatedJob(id=f"job{number}", submitted=submitted, **given)  # type: ignore[arg-type]


def run(directory: Path, text: str, *jobs: SimulatedJob, policy: int | None = None) -> Course:
    site = described(directory, text)
    compared = Compared(name="") if policy is None else site.policies[policy]
    return Simulation(site, list(jobs) or [job(1, 60.0)], compared).run()


def waits(course: Course) -> list[float]:
    return sorted(wait for several in course.waits.values() for wait in several)


# ── machines that stand ready ────────────────────────────────────────────────────────────────────


def test_machines_are_kept_ready_and_jobs_take_them(tmp_path: Path) -> None:
    course = run(tmp_path, SHARED + KEEP_TWO, job(1, 60.0), job(2, 60.0), job(3, 60.1))
    assert waits(course)[1] < SOON
    assert waits(course)[2] > SOON
    found = course.measured
    # Two at the beginning, and two again when those were taken.
    assert (found.machines_ahead, found.machines_reused) == (4, 2)
    assert found.triggers_fired["keep_ready"] >= 2
    assert found.ended == {"done": 3}


def test_idle_machines_are_stopped_and_some_kept(tmp_path: Path) -> None:
    text = """
triggers:
  few:
    when: environment.idle > 1
    do: stop_idle(environment.name, keep=1)
    hold: 30s
"""
    simulation = Simulation(
        described(tmp_path, SHARED + text),
        [job(1, 0.0, count=3), job(2, 1000.0)],
        Compared(name=""),
    )
    found = simulation.run().measured
    assert (found.machines_made, found.machines_reused, found.triggers_fired) == (3, 1, {"few": 1})
    seconds = found.idle_cpu_hours * 3600
    assert 1000 - 110 + 2 * 30 - 20 < seconds < 1000 - 110 + 2 * 30 + 20


def test_shipped_triggers_of_on_demand_activation_work(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More jobs than there is room for: those that wait for long have machines made ahead."""
    monkeypatch.setenv("ENCAMP_QUIET", "1")
    path = tmp_path / "site.yaml"
    path.write_text(SHARED + "jobs: {jobs: 60, every: 5s, run: 1m, environments: {one: 1}}\n")
    file = ROOT / "examples" / "on-demand.yaml"
    assert run_command(["simulate", str(path), "--triggers", str(file), "--json"]) == 0
    [found] = msgspec.json.decode(capfd.readouterr().out)
    assert found["ended"] == {"done": 60}
    assert found["triggers_fired"]["on_demand"] > 0
    assert found["machines_ahead"] > 0


def test_triggers_of_a_policy_stand_beside_those_of_the_site_or_for_them(tmp_path: Path) -> None:
    more = """
policies:
  as the site says: {}
  otherwise:
    triggers:
      keep_ready: {when: environment.reuse and environment.idle < 0, do: place('one')}
      another: {when: len(hosts) > 0, do: log('hosts')}
  divided: {sharing: static}
"""
    found = [run(tmp_path, SHARED + KEEP_TWO + more, policy=number).measured for number in range(3)]
    assert [one.machines_ahead > 0 for one in found] == [True, False, False]
    assert [set(one.triggers_fired) for one in found] == [
        {"keep_ready"},
        {"keep_ready", "another"},
        set(),
    ]


def test_simulation_with_triggers_is_the_same_again(tmp_path: Path) -> None:
    jobs = "jobs: {jobs: 80, every: 10s, run: 60s, owners: 1}\n"
    site = described(tmp_path, SHARED + KEEP_TWO.replace("somebody", "user0") + jobs)

    def everything() -> tuple[bytes, list[str]]:
        log: list[str] = []
        simulation = Simulation(site, made_up(site, 5), Compared(name=""), listen=log.append)
        return msgspec.json.encode(simulation.run()), log

    assert everything() == everything()


# ── what has no meaning here ─────────────────────────────────────────────────────────────────────


def test_what_is_not_carried_out_is_counted_and_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENCAMP_QUIET", "1")
    path = tmp_path / "site.yaml"
    path.write_text(
        SHARED
        + """
jobs: {jobs: 3, every: 5m, run: 1m, environments: {one: 1}}
triggers:
  told: {when: machine.state == 'running', do: "mail('root', machine.host.name, 'It runs.')"}
  rest: {when: machine.idle, do: suspend(machine)}
"""
    )
    assert run_command(["simulate", str(path)]) == 0
    printed = capfd.readouterr().out
    assert "mail was not carried out" in printed
    assert "by trigger told; the first: mail to root: It runs." in printed
    assert "machine.suspend was not carried out" in printed


def test_machines_for_somebody_unknown_are_told(tmp_path: Path) -> None:
    course = run(tmp_path, SHARED + KEEP_TWO.replace("somebody", "nobody"))
    [left] = course.measured.not_done
    assert (left.trigger, left.what) == ("keep_ready", "place")
    assert "There is no user 'nobody'" in left.first


def test_environments_whose_machines_are_not_shared_are_not_kept_ready(tmp_path: Path) -> None:
    course = run(tmp_path, SHARED + KEEP_TWO.replace("environment.reuse and ", ""))
    [left] = course.measured.not_done
    assert "Machines of other cannot stand ready" in left.first
    assert course.measured.machines_ahead > 0


# ── what they can know ───────────────────────────────────────────────────────────────────────────


def test_triggers_see_memory_and_load_of_hosts(tmp_path: Path) -> None:
    text = """
triggers:
  tight: {when: host.memory_free < 2 * GiB, do: log(host.name)}
  busy: {when: host.load1 >= 3 and host in group('node'), do: log(host.name)}
  crowd: {when: host.machines_running > 3, do: log(host.name)}
"""
    size = Size(1, 2048 * MIB)
    course = run(tmp_path, SHARED + text, *(job(number, 0.0, size=size) for number in range(3)))
    assert course.measured.triggers_fired == {"tight": 0, "busy": 1, "crowd": 0}
    course = run(tmp_path, SHARED + text, *(job(number, 0.0, size=size) for number in range(4)))
    assert course.measured.triggers_fired["tight"] == 0
    course = run(tmp_path, SHARED + text, job(1, 0.0, size=Size(1, 7000 * MIB)))
    assert course.measured.triggers_fired == {"tight": 1, "busy": 0, "crowd": 0}


@pytest.mark.parametrize(
    ("trigger", "wrong"),
    [
        ("{when: host.swap_free < 1, do: log('a')}", "site.yaml:19:17: a host has no 'swap_free'"),
        ("{when: len(hosts) > 0, do: \"send(hosts, 'site.restart')\"}", "'site.restart'"),
        ("{when: len(hosts) >, do: log('a')}", "site.yaml:19:"),
        ("{when: len(group('nodes')) > 0, do: log('a')}", "there is no group 'nodes'"),
    ],
)
def test_what_there_is_not_is_refused_when_loaded(tmp_path: Path, trigger: str, wrong: str) -> None:
    with pytest.raises(EncampError) as raised:
        run(tmp_path, f"{SHARED}triggers:\n  wrong: {trigger}\n")
    assert raised.value.code is Code.CONFIGURATION
    assert wrong in raised.value.detail
    assert "Simulated hosts tell: clock_offset, cpus, disk_free" in raised.value.hint


@pytest.mark.parametrize(
    ("triggers", "wrong"),
    [
        ("  keep: {when: 'True'}", "'do' is missing: a trigger needs it"),
        ("  keep: {when: 'True', do: log('a'), hld: 3}", "did you mean 'hold'?"),
        ("  [a]", "triggers, by their names, are expected here, not a list"),
    ],
)
def test_mistakes_in_triggers_are_told_with_their_places(
    tmp_path: Path, triggers: str, wrong: str
) -> None:
    with pytest.raises(EncampError) as raised:
        described(tmp_path, f"{SHARED}triggers:\n{triggers}\n")
    assert "site.yaml:19:" in raised.value.detail
    assert wrong in raised.value.detail


# ── the example ──────────────────────────────────────────────────────────────────────────────────


def test_sessions_of_the_example_wait_less_with_reuse_and_least_with_machines_ready() -> None:
    site = read_site(EXAMPLES / "ready.yaml")
    jobs = made_up(site, 0)[:300]
    courses = [Simulation(site, jobs, compared).run() for compared in site.policies]
    found = [course.measured for course in courses]
    alone, reused, ready = [one.by_class["interactive"].mean for one in found]
    assert alone > 2 * reused > 2 * ready
    assert [one.machines_reused > 0 for one in found] == [False, True, True]
    assert [one.machines_ahead > 0 for one in found] == [False, False, True]
    assert not any(one.not_done for one in found)
    assert [any(course.idle) for course in courses] == [False, True, True]
    assert "of idle machines (dotted)" in draw(courses, "ready").decode()
    assert "dotted" not in draw(courses[:1], "on demand").decode()
