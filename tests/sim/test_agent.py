"""Simulated agents keep to what real ones do: each claim is one promise, each command is carried
out once, and what is on the disk outlives them."""

from __future__ import annotations

from pathlib import Path

import pytest

from encamp.model.request import Cause
from encamp.model.size import MIB, Size
from encamp.sim.said import Answer, Cancel, Claim, Execute, Release
from encamp.sim.simulation import Simulation
from encamp.sim.site import Compared
from encamp.sim.workload import SimulatedJob
from tests.sim.sites import described

SIZE = Size(1, 5 * 1024 * MIB)
"""There is room for one of them."""


def claim(name: str = "job1.0.1") -> Claim:
    return Claim(name, "one", SIZE, 30.0)


def execute(name: str = "job1.0.1") -> Execute:
    return Execute(name, "job1", 0, "one", SIZE)


class Alone:
    """A host and its agent, without a manager."""

    def __init__(self, directory: Path) -> None:
        job = SimulatedJob(
            id="job1", owner="a", submitted=0.0, run=10.0, environment="one", size=SIZE
        )
        self.simulation = Simulation(described(directory), [job], Compared(name=""))
        self.simulation.start_agent("node1")
        self.host = self.simulation.hosts["node1"]

    def tell(self, message: object) -> Answer:
        return self.simulation.agents["node1"].take(message)  # type: ignore[arg-type]

    def wait(self, seconds: float) -> None:
        clock = self.simulation.clock
        until = clock.now + seconds
        while (soon := clock.next()) is not None and soon <= until:
            clock.step()
        clock.now = until

    @property
    def ran(self) -> int:
        return len(self.simulation.tally.endings.get("job1", ()))

    @property
    def result(self) -> str:
        result = self.host.commands["job1.0.1"].result
        assert result is not None
        return result.failure or f"exit code {result.exit_code}"


@pytest.fixture
def alone(tmp_path: Path) -> Alone:
    return Alone(tmp_path)


def test_same_claim_again_is_the_same_promise(alone: Alone) -> None:
    assert alone.tell(claim()).refusal == alone.tell(claim()).refusal == ""
    assert alone.host.used() == SIZE


def test_claim_for_which_there_is_no_memory_is_refused(alone: Alone) -> None:
    alone.tell(claim())
    answer = alone.tell(claim("job2.0.1"))
    assert (answer.refusal, answer.cause) == (
        "node1 refuses: it has not enough memory left",
        Cause.NO_ROOM,
    )


def test_promise_is_kept_for_a_time_only(alone: Alone) -> None:
    alone.tell(claim())
    alone.wait(31.0)
    assert alone.tell(execute()).refusal == "its claim has expired"
    assert alone.tell(claim("job2.0.1")).refusal == ""


def test_promise_that_is_not_needed_makes_room(alone: Alone) -> None:
    alone.tell(claim())
    alone.tell(Release("job1.0.1"))
    assert alone.host.used() == Size(0, 0)


def test_command_without_a_promise_is_refused(alone: Alone) -> None:
    assert alone.tell(execute()).refusal


def test_command_is_carried_out_once(alone: Alone) -> None:
    alone.tell(claim())
    for _ in range(3):
        assert alone.tell(execute()).refusal == ""
        alone.wait(7.0)
    alone.wait(100.0)
    alone.tell(claim())
    alone.tell(execute())
    alone.wait(100.0)
    assert (alone.ran, alone.result) == (1, "exit code 0")
    assert alone.host.used() == Size(0, 0)


def test_claim_that_comes_late_keeps_no_room_beside_its_machine(alone: Alone) -> None:
    alone.tell(claim())
    alone.tell(execute())
    alone.wait(1.0)
    alone.tell(claim())
    assert alone.host.used() == SIZE


@pytest.mark.parametrize("after", [0.001, 0.5, 5.0, 12.0])
def test_command_can_be_stopped_at_any_time(alone: Alone, after: float) -> None:
    alone.tell(claim())
    alone.tell(execute())
    alone.wait(after)
    alone.tell(Cancel("job1.0.1"))
    alone.wait(100.0)
    assert (alone.ran, alone.result) == (0, "it was cancelled")
    assert alone.host.used() == Size(0, 0)


def test_command_that_was_stopped_before_it_came_is_not_begun(alone: Alone) -> None:
    alone.tell(claim())
    alone.tell(Cancel("job1.0.1"))
    assert alone.tell(execute()).refusal == ""
    alone.wait(100.0)
    assert alone.ran == 0


def test_commands_go_on_while_their_agent_is_away(alone: Alone) -> None:
    alone.tell(claim())
    alone.tell(execute())
    alone.simulation.stop_agent("node1", goodbye=True)
    alone.wait(100.0)
    alone.simulation.start_agent("node1")
    assert (alone.ran, alone.result) == (1, "exit code 0")
    assert alone.simulation.agents["node1"].hello().under_way == ("job1.0.1",)


def test_commands_are_lost_with_their_host_and_told_so(alone: Alone) -> None:
    alone.tell(claim())
    alone.tell(execute())
    alone.wait(10.0)
    alone.simulation.stop_agent("node1", goodbye=False)
    alone.host.crash()
    assert alone.host.machines == {}
    alone.wait(100.0)
    alone.host.boot()
    alone.simulation.start_agent("node1")
    alone.wait(100.0)
    assert (alone.ran, alone.result) == (0, "its host has crashed")


def test_command_that_was_only_written_down_begins_after_a_crash(alone: Alone) -> None:
    alone.tell(claim())
    alone.tell(execute())
    alone.host.crash()
    alone.host.boot()
    alone.wait(100.0)
    assert (alone.ran, alone.result) == (1, "exit code 0")
