"""Static classes: who owns which hosts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from encamp.model.size import MIB, Size
from encamp.sim.dividing import divide
from encamp.sim.site import Division, SimulatedSite
from encamp.sim.workload import SimulatedJob
from tests.sim.sites import described

SITE = """
hosts:
  small: {count: 10, cpus: 4, memory: 8G}
  large: {count: 5, cpus: 32, memory: 64G}
environments: {a: {}, b: {}}
"""


def job(
    environment: str, run: float, cpus: int = 1, count: int = 1, **more: object
) -> SimulatedJob:
    return SimulatedJob(
        id="job",
        owner="somebody",
        submitted=0.0,
        run=run,
        environment=environment,
        size=Size(cpus, 64 * MIB),
        count=count,
        **more,  # type: ignore[arg-type]
    )


def shares(site: SimulatedSite, jobs: list[SimulatedJob], division: Division) -> Counter[str]:
    owners = divide(site, jobs, division)
    return Counter(
        f"{owner} {host.rstrip('0123456789')}"
        for host, several in owners.items()
        for owner in several
    )


def test_hosts_are_dealt_out_in_equal_parts(tmp_path: Path) -> None:
    found = shares(described(tmp_path, SITE), [], Division.EQUAL)
    assert (found["a small"], found["b small"]) == (5, 5)
    assert sorted((found["a large"], found["b large"])) == [2, 3]


def test_hosts_are_dealt_out_by_demand_and_nobody_goes_without(tmp_path: Path) -> None:
    jobs = [job("a", 900.0), job("b", 100.0)]
    found = shares(described(tmp_path, SITE), jobs, Division.DEMAND)
    assert (found["a small"], found["b small"]) == (9, 1)
    assert (found["a large"], found["b large"]) == (4, 1)


def test_largest_job_of_each_has_room(tmp_path: Path) -> None:
    jobs = [job("a", 1e6), job("b", 1.0, cpus=20, count=3)]
    found = shares(described(tmp_path, SITE), jobs, Division.DEMAND)
    assert found["b large"] == 3


def test_room_is_where_a_job_wants_it(tmp_path: Path) -> None:
    jobs = [job("a", 1e6), job("b", 1.0, cpus=1, count=12, hosts=(("small",),))]
    found = shares(described(tmp_path, SITE), jobs, Division.DEMAND)
    assert (found["b small"], found["b large"]) == (3, 1)


def test_job_that_is_too_large_for_all_takes_no_hosts_from_others(tmp_path: Path) -> None:
    found = shares(described(tmp_path, SITE), [job("b", 1.0, cpus=64)], Division.EQUAL)
    assert found["a small"] == 5


def test_environments_may_say_which_hosts_are_theirs(tmp_path: Path) -> None:
    text = SITE.replace("a: {}", "a: {hosts: large}")
    found = shares(described(tmp_path, text), [], Division.EQUAL)
    assert found == {"a large": 5, "b small": 10}
