"""Simulated sites: what jobs wait for, what is made for them, and what that amounts to."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from encamp.model.request import Together
from encamp.model.size import MIB, Size
from encamp.sim.measures import Course, Measured, averaged, quantile
from encamp.sim.simulation import Simulation
from encamp.sim.site import Compared, Sharing, SimulatedSite
from encamp.sim.workload import SimulatedJob, made_up
from tests.sim.sites import SMALL, described

STATIC = Compared(name="static", sharing=Sharing.STATIC)
ON_DEMAND = Compared(name="on demand")

SOON = 0.2
"""Seconds that messages and decisions take at most."""


def job(number: int, submitted: float = 0.0, run: float = 100.0, **more: object) -> SimulatedJob:
    given = {"environment": "one", "size": Size(1, 1024 * MIB), "owner": "somebody", **more}
    return SimulatedJob(id=f"job{number}", submitted=submitted, run=run, **given)  # type: ignore[arg-type]


def simulate(
    site: SimulatedSite, jobs: list[SimulatedJob], compared: Compared = ON_DEMAND
) -> Course:
    return Simulation(site, jobs, compared).run()


def waits(course: Course) -> list[float]:
    return sorted(wait for several in course.waits.values() for wait in several)


# ── what a job waits for ─────────────────────────────────────────────────────────────────────────


def test_first_job_waits_for_image_and_template_and_the_next_for_its_clone(tmp_path: Path) -> None:
    course = simulate(described(tmp_path), [job(1), job(2, 50.0)])
    short, long = waits(course)
    assert 0.5 < short < 0.5 + SOON
    assert 7.5 < long < 7.5 + SOON
    found = course.measured
    assert (found.machines_made, found.template_hits, found.templates_made) == (2, 1, 1)
    assert (found.images_copied, found.bytes_copied) == (1, 125_000_000)


def test_environment_without_templates_boots_every_time(tmp_path: Path) -> None:
    course = simulate(
        described(tmp_path),
        [job(1, environment="other"), job(2, 50.0, environment="other")],
    )
    assert course.measured.booted == 2
    assert 3.68 < waits(course)[0] < 3.68 + SOON


def test_image_is_copied_to_a_host_once_for_all_who_wait_for_it(tmp_path: Path) -> None:
    course = simulate(described(tmp_path), [job(1), job(2, 0.1), job(3, 0.2)])
    assert course.measured.images_copied == 1
    assert course.measured.templates_made == 1


def test_images_that_are_there_are_not_copied(tmp_path: Path) -> None:
    site = described(tmp_path, SMALL.replace("memory: 8G", "memory: 8G\n    images: one"))
    assert simulate(site, [job(1)]).measured.images_copied == 0


def test_nothing_is_made_where_environments_are_installed(tmp_path: Path) -> None:
    course = simulate(described(tmp_path), [job(1), job(2, environment="other")], STATIC)
    assert waits(course)[-1] < SOON
    assert (course.measured.machines_made, course.measured.images_copied) == (0, 0)


def test_jobs_wait_until_there_is_room(tmp_path: Path) -> None:
    """Two hosts with four processors each."""
    jobs = [job(number, size=Size(4, 1024 * MIB)) for number in range(3)]
    course = simulate(described(tmp_path), jobs)
    assert waits(course)[-1] > 100.0
    assert course.measured.ended == {"done": 3}


def test_all_machines_of_a_job_run_or_none(tmp_path: Path) -> None:
    large = job(2, 1.0, count=2, size=Size(4, 1024 * MIB), together=Together.APART)
    course = simulate(described(tmp_path), [job(1), large])
    assert waits(course)[-1] > 100.0


def test_job_that_can_never_run_is_refused_and_counted(tmp_path: Path) -> None:
    simulation = Simulation(described(tmp_path), [job(1), job(2, size=Size(64, MIB))], ON_DEMAND)
    course = simulation.run()
    assert course.measured.ended == {"done": 1, "refused": 1}
    assert "job2" in simulation.refused


def test_static_classes_wait_while_others_are_idle(tmp_path: Path) -> None:
    """Each environment owns a host, and all jobs are for one of them."""
    jobs = [job(number, size=Size(1, 1024 * MIB), owner=f"user{number}") for number in range(8)]
    static = simulate(described(tmp_path), jobs, STATIC).measured
    shared = simulate(described(tmp_path), jobs).measured
    assert static.waiting.longest > 100.0
    assert shared.waiting.longest < 10.0
    assert shared.utilisation > 1.5 * static.utilisation
    assert shared.throughput > 1.5 * static.throughput


# ── the same again ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("compared", [STATIC, ON_DEMAND], ids=lambda compared: compared.name)
def test_simulation_is_the_same_again(tmp_path: Path, compared: Compared) -> None:
    site = described(tmp_path, SMALL + "jobs: {jobs: 150, every: 20s, run: 60s}\n")

    def everything() -> tuple[bytes, list[str]]:
        log: list[str] = []
        course = Simulation(site, made_up(site, 5), compared, listen=log.append).run()
        return msgspec.json.encode(course), log

    assert everything() == everything()


# ── figures ──────────────────────────────────────────────────────────────────────────────────────


def measured(directory: Path) -> Measured:
    """A job of 100 s that waits 7.5 s, and one of 5 s that waits 0.5 s, on eight processors."""
    jobs = [job(1), job(2, 50.0, run=5.0, environment="one")]
    return simulate(described(directory), jobs).measured


def test_waiting_is_told_by_mean_median_and_what_most_stay_below(tmp_path: Path) -> None:
    waiting = measured(tmp_path).waiting
    assert waiting.mean == pytest.approx(4.0, abs=SOON)
    assert waiting.median == pytest.approx(4.0, abs=SOON)
    assert waiting.p95 == pytest.approx(0.5 + 0.95 * 7.0, abs=SOON)
    assert waiting.longest == pytest.approx(7.5, abs=SOON)


def test_slowdown_is_bounded_for_short_jobs(tmp_path: Path) -> None:
    """The short one is not told to have been slowed down: 5.5 s are less than ten."""
    assert measured(tmp_path).waiting.slowdown == pytest.approx((1.075 + 1.0) / 2, abs=0.01)


def test_utilisation_counts_commands_only(tmp_path: Path) -> None:
    assert measured(tmp_path).utilisation == pytest.approx(105.0 / (8 * 107.5), abs=0.001)


def test_classes_are_told_apart(tmp_path: Path) -> None:
    text = SMALL.replace("templates: false", "templates: false\n    classes: [slow, second]")
    course = simulate(described(tmp_path, text), [job(1), job(2, 1.0, environment="other")])
    assert set(course.measured.by_class) == {"one", "slow"}
    assert course.measured.by_class["slow"].jobs == 1


def test_quantiles_lie_between_values() -> None:
    assert quantile([], 0.5) == 0
    assert quantile([3.0], 0.95) == 3
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5


def test_course_is_averaged_over_time() -> None:
    _, used = averaged([(0.0, 50.0, 2), (25.0, 100.0, 2)], 0.0, 100.0, 4)
    assert sum(used) / len(used) == pytest.approx((100 + 150) / 400)
    assert (used[0], used[len(used) // 3], used[-1]) == pytest.approx((0.5, 1.0, 0.5))
