"""Jobs: what those of a trace become on a site, and those that are made up."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from encamp.model.errors import EncampError
from encamp.model.request import Together
from encamp.model.size import MIB
from encamp.sim.site import SimulatedSite
from encamp.sim.trace import Trace, TraceJob
from encamp.sim.workload import SimulatedJob, both, jobs_of_trace, made_up
from tests.sim.sites import SMALL, described

JOB = TraceJob(
    line=3,
    number=7,
    submitted=1000.0,
    run=60.0,
    cpus=4,
    memory=2048.0,
    user="12",
    user_group="3",
    program="9",
    queue="short",
    properties=("x86_64", "nfs4"),
)


def trace(*jobs: TraceJob) -> Trace:
    return Trace(path="jobs.swf", jobs=jobs)


def become(site: SimulatedSite, **changes: object) -> SimulatedJob:
    [job] = jobs_of_trace(site, trace(msgspec.structs.replace(JOB, **changes)))
    return job


def reading(directory: Path, text: str) -> SimulatedSite:
    return described(directory, f"{SMALL}trace:\n  environment: one\n{text}")


def test_times_count_from_the_first_job_and_can_be_made_faster(tmp_path: Path) -> None:
    site = reading(tmp_path, "  faster: 2\n")
    later = msgspec.structs.replace(JOB, number=8, submitted=1100.0)
    first, second = jobs_of_trace(site, trace(JOB, later))
    assert (first.submitted, second.submitted, second.run) == (0.0, 50.0, 60.0)


@pytest.mark.parametrize(
    ("rule", "environment"),
    [
        ("properties: nfs*", "other"),
        ("properties: [ia64, nfs4]", "other"),
        ("properties: ia64", "one"),
        ("queues: short", "other"),
        ("users: '*[0-4]'", "other"),
        ("users: '*[5-9]'", "one"),
        ("user_groups: '3'", "other"),
        ("programs: '9'", "other"),
        ("queues: short, users: '13'", "one"),
    ],
)
def test_first_rule_that_matches_in_all_it_says_counts(
    tmp_path: Path, rule: str, environment: str
) -> None:
    site = reading(tmp_path, f"  rules:\n    - {{{rule}, environment: other}}\n")
    assert become(site).environment == environment


def test_job_that_no_rule_matches_is_told_with_its_line(tmp_path: Path) -> None:
    text = "trace:\n  rules:\n    - {queues: long, environment: one}\n"
    site = described(tmp_path, SMALL + text)
    with pytest.raises(EncampError) as raised:
        jobs_of_trace(site, trace(JOB, JOB))
    assert "jobs.swf:3:1: no rule says what job 7 (queue short, user 12" in raised.value.detail
    assert "a rule for them" in raised.value.hint


def test_only_environment_of_a_site_needs_no_rule(tmp_path: Path) -> None:
    site = described(tmp_path, SMALL.partition("  other:")[0])
    assert become(site).environment == "one"


def test_memory_is_what_the_trace_means_by_it(tmp_path: Path) -> None:
    assert become(reading(tmp_path, "")).size.memory == 16 * MIB  # 8 MiB would be too little.
    assert become(reading(tmp_path, ""), memory=10240.0).size.memory == 40 * MIB
    per_machine = reading(tmp_path, "  memory: bytes per machine\n")
    assert become(per_machine, memory=5e9).size.memory == 5_000_000_000
    nothing = reading(tmp_path, "  memory: nothing\n")
    assert become(nothing).size.memory == become(nothing, memory=None).size.memory == 1024 * MIB


def test_large_jobs_get_several_machines(tmp_path: Path) -> None:
    site = reading(tmp_path, "  machine_cpus: 8\n")
    assert (become(site, cpus=20).count, become(site, cpus=20).size.cpus) == (3, 8)
    assert (become(site, cpus=3).count, become(site, cpus=3).size.cpus) == (1, 3)
    nodes = become(site, cpus=7, nodes=((1, 1), (3, 2)))
    assert (nodes.count, nodes.size.cpus) == (4, 2)


def test_needs_add_up(tmp_path: Path) -> None:
    text = """
  rules:
    - {properties: nfs4, environment: one, requirements: host.cpus > 2, priority: 3}
  needs:
    - {property: nfs4, requirements: host.cpus > 3}
    - {property: x86*, hosts: node}
    - {property: ia64, hosts: node}
"""
    job = become(reading(tmp_path, text))
    assert job.requirements == "(host.cpus > 2) and (host.cpus > 3)"
    assert (job.hosts, job.priority) == ((("node",),), 3)


def test_expressions_are_joined_only_where_there_are_several() -> None:
    assert (both([]), both(["", "a"]), both(["a", "b or c"])) == ("", "a", "(a) and (b or c)")


# ── made up ──────────────────────────────────────────────────────────────────────────────────────


def test_made_up_jobs_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    site = described(tmp_path, SMALL + "jobs: {jobs: 50}\n")
    assert made_up(site, 3) == made_up(site, 3)
    assert made_up(site, 3) != made_up(site, 4)


def test_made_up_jobs_are_as_described(tmp_path: Path) -> None:
    text = """jobs:
  {jobs: 4000, every: 10s, run: 100s, spread: 0.5, cpus: [1, 2], machines: [3], apart: true,
   environments: {one: 3, other: 1}, owners: 5, cancelled: 0.25, retries: 2}
"""
    jobs = made_up(described(tmp_path, SMALL + text), 1)
    assert 36_000 < jobs[-1].submitted < 44_000
    assert 90 < sorted(job.run for job in jobs)[2000] < 110
    environments = Counter(job.environment for job in jobs)
    assert 2800 < environments["one"] < 3200
    assert len({job.owner for job in jobs}) == 5
    assert {job.size.cpus for job in jobs} == {1, 2}
    assert {(job.count, job.together, job.retries) for job in jobs} == {(3, Together.APART, 2)}
    assert 900 < sum(job.cancelled is not None for job in jobs) < 1100


def test_environments_take_turns(tmp_path: Path) -> None:
    text = "jobs: {jobs: 2000, every: 1s, turn: 1000s, environments: {one: 9, other: 1}}\n"
    jobs = made_up(described(tmp_path, SMALL + text), 0)
    early = Counter(job.environment for job in jobs if job.submitted < 1000)
    late = Counter(job.environment for job in jobs if job.submitted > 1000)
    assert early["one"] > 5 * early["other"]
    assert late["other"] > 5 * late["one"]


def test_site_on_which_nobody_wants_anything_is_refused(tmp_path: Path) -> None:
    site = described(tmp_path, SMALL + "jobs: {environments: {one: 0}}\n")
    with pytest.raises(EncampError, match="No environment is wanted"):
        made_up(site, 0)
