"""Machines that have one job after the other: who takes one, when it gives way, what it holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from encamp.model.machine import IDLE_FOR
from encamp.model.size import MIB, Size
from encamp.sim.measures import Measured
from encamp.sim.said import Answer, Claim, Execute, Remove
from encamp.sim.simulation import Simulation
from encamp.sim.site import Compared
from encamp.sim.workload import SimulatedJob
from tests.sim.sites import SMALL, described

SHARED = SMALL.replace("count: 2", "count: 1").replace("    clone", "    reuse: true\n    clone")
"""One host; machines of `one` may have several jobs."""
ON_DEMAND = Compared(name="on demand")
SOON = 0.2
GIB = 1024 * MIB


def job(number: int, submitted: float, **more: object) -> SimulatedJob:
    given = {"environment": "one", "size": Size(1, GIB), "owner": "somebody", "run": 100.0, **more}
    return SimulatedJob(id=f"job{number}", submitted=submitted, **given)  # type: ignore[arg-type]


def simulate(
    directory: Path, *jobs: SimulatedJob, compared: Compared = ON_DEMAND, text: str = SHARED
) -> tuple[Measured, list[float]]:
    """What was found, and for how long each job waited, in the order of these times."""
    course = Simulation(described(directory, text), list(jobs), compared).run()
    return course.measured, sorted(wait for several in course.waits.values() for wait in several)


def test_next_job_of_the_same_owner_takes_the_machine_at_once(tmp_path: Path) -> None:
    found, waits = simulate(tmp_path, job(1, 0.0), job(2, 200.0), job(3, 400.0))
    assert (found.machines_made, found.machines_reused, found.templates_made) == (1, 2, 1)
    assert waits[1] < SOON
    assert found.ended == {"done": 3}


@pytest.mark.parametrize(
    "other",
    [
        {"owner": "another"},
        {"size": Size(2, GIB)},
        {"environment": "other"},
        {"submitted": 50.0},
        {"submitted": 100.0 + IDLE_FOR + 60.0},
    ],
    ids=["another owner", "another size", "another environment", "while it is used", "too late"],
)
def test_machine_is_not_taken_by(tmp_path: Path, other: dict[str, object]) -> None:
    found, _ = simulate(tmp_path, job(1, 0.0), job(2, **{"submitted": 200.0, **other}))  # type: ignore[arg-type]
    assert (found.machines_made, found.machines_reused) == (2, 0)


def test_jobs_share_machines_only_if_policy_and_environment_say_so(tmp_path: Path) -> None:
    jobs = job(1, 0.0), job(2, 200.0)
    alone = Compared(name="alone", reuse=False)
    for found, _ in (
        simulate(tmp_path, *jobs, compared=alone),
        simulate(tmp_path, *jobs, text=SMALL),
    ):
        assert (found.machines_made, found.machines_reused, found.idle_cpu_hours) == (2, 0, 0.0)


def test_machine_of_a_job_that_was_cancelled_is_gone(tmp_path: Path) -> None:
    found, _ = simulate(tmp_path, job(1, 0.0, cancelled=50.0), job(2, 200.0))
    assert (found.machines_made, found.machines_reused) == (2, 0)


def test_idle_machines_give_way(tmp_path: Path) -> None:
    """There is room for two machines of 3 GiB, and for a third one only if one of them goes."""
    size = Size(1, 3 * GIB)
    found, waits = simulate(
        tmp_path,
        job(1, 0.0, size=size),
        job(2, 150.0, size=size, owner="third"),
        job(3, 300.0, size=size, owner="another", environment="other"),
        job(4, 500.0, size=size, owner="third"),
        job(5, 700.0, size=size),
    )
    assert waits[-1] < 10.0
    # The one that had stood longest went.
    assert (found.machines_made, found.machines_reused) == (4, 1)


def test_what_idle_machines_hold_is_told(tmp_path: Path) -> None:
    size = Size(2, 3 * GIB)
    found, _ = simulate(tmp_path, job(1, 0.0, size=size), job(2, 1000.0, size=size))
    idle = (1000.0 - 107.5) / 3600
    assert found.idle_cpu_hours == pytest.approx(2 * idle, rel=0.001)
    assert found.idle_memory_hours == pytest.approx(3 * idle, rel=0.001)


# ── on a host ────────────────────────────────────────────────────────────────────────────────────


class Alone:
    """A host and its agent, without a manager; a job of it has left a machine."""

    def __init__(self, directory: Path) -> None:
        self.simulation = Simulation(described(directory, SHARED), [job(1, 0.0)], ON_DEMAND)
        self.simulation.start_agent("node1")
        self.host = self.simulation.hosts["node1"]
        self.run("job1.0.1")
        self.wait(200.0)

    def run(self, name: str) -> None:
        self.tell(Claim(name, "one", Size(1, GIB), 30.0, 1000))
        self.tell(Execute(name, "job1", 0, "one", Size(1, GIB), owner=1000, reuse=True))

    def tell(self, message: object) -> Answer:
        return self.simulation.agents["node1"].take(message)  # type: ignore[arg-type]

    def wait(self, seconds: float) -> None:
        clock = self.simulation.clock
        until = clock.now + seconds
        while (soon := clock.next()) is not None and soon <= until:
            clock.step()
        clock.now = until


@pytest.fixture
def alone(tmp_path: Path) -> Alone:
    return Alone(tmp_path)


def test_machine_that_a_job_has_taken_is_not_removed_as_idle(alone: Alone) -> None:
    [machine] = alone.host.idle.machines()
    alone.run("job1.0.2")
    alone.wait(1.0)
    assert alone.tell(Remove(machine.id, only_idle=True)).refusal
    alone.wait(200.0)
    assert len(alone.simulation.tally.endings["job1"]) == 2
    assert alone.tell(Remove(machine.id, only_idle=True)).refusal == ""
    assert not alone.host.machines


def test_idle_machines_do_not_outlive_their_host(alone: Alone) -> None:
    alone.host.crash()
    alone.host.boot()
    assert not alone.host.machines
    assert len(alone.simulation.tally.idle) == 1


def test_idle_machine_is_cleared_by_an_agent_that_comes_late(alone: Alone) -> None:
    alone.simulation.stop_agent("node1", goodbye=False)
    alone.wait(2 * IDLE_FOR)
    assert alone.host.idle.machines()
    alone.simulation.start_agent("node1")
    assert not alone.host.machines
