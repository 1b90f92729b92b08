"""What news of a command means for the part of a request that it is for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from encamp.manager.parts import RUN, PartId, is_standing, part_id, part_moved
from encamp.model.command import CommandRecord, CommandState
from encamp.model.property import Value
from encamp.model.request import Cause, PartResult, PartState

JOB: dict[str, Value] = {"request": {"id": "r1", "job": {"command": {}}}}


def command(state: CommandState, **fields: Any) -> CommandRecord:
    usual = CommandRecord(
        id="r1.2.3",
        host="node1",
        name=RUN,
        arguments={**JOB},
        issuer="alice",
        issued=1.0,
        timeout=60.0,
        state=state,
    )
    return msgspec.structs.replace(usual, **fields)


def done(result: PartResult, **fields: Any) -> CommandRecord:
    return command(CommandState.DONE, value=msgspec.to_builtins(result), **fields)


@pytest.mark.parametrize(
    "name", ["", "r1", "r1.1", "r1.1.x", ".1.1", "r1.-1.1", "r1.1.1.1", "r1.1.\u0661", "x" * 999]
)
def test_other_ids_are_no_parts(name: str) -> None:
    assert part_id(name) is None


def test_a_part_is_known_by_the_id_of_its_command() -> None:
    assert part_id("r1.2.3") == PartId("r1", 2, 3)
    moved = part_moved(done(PartResult(exit_code=0, began=True)))
    assert moved is not None
    assert (moved.request, moved.number, moved.attempt, moved.host) == ("r1", 2, 3, "node1")


@pytest.mark.parametrize(
    ("phase", "state", "cause", "began"),
    [
        ("image", PartState.STARTING, Cause.IMAGE, False),
        ("start", PartState.STARTING, Cause.START, False),
        ("running", PartState.RUNNING, Cause.NONE, True),
    ],
)
def test_phases_are_told(phase: str, state: PartState, cause: Cause, began: bool) -> None:
    moved = part_moved(command(CommandState.RUNNING, phase=phase, machine="m"))
    assert moved is not None
    assert (moved.state, moved.cause, moved.began) == (state, cause, began)
    assert moved.machine == "m"


def test_what_is_no_news_is_not_told() -> None:
    assert part_moved(command(CommandState.WAITING)) is None
    assert part_moved(command(CommandState.RUNNING)) is None
    assert part_moved(command(CommandState.RUNNING, phase="dancing")) is None


@pytest.mark.parametrize(
    ("state", "fields", "began"),
    [
        (CommandState.LOST, {}, True),
        (CommandState.LOST, {"phase": "running"}, True),
        (CommandState.LOST, {"phase": "start"}, False),
        (CommandState.FAILED, {"phase": "image"}, False),
        (CommandState.FAILED, {}, True),
        (CommandState.REFUSED, {}, False),
        (CommandState.CANCELLED, {}, False),
        (CommandState.CANCELLED, {"started": 1.0, "phase": "running"}, True),
        (CommandState.TIMED_OUT, {}, False),
        (CommandState.TIMED_OUT, {"started": 1.0}, True),
    ],
)
def test_only_what_surely_has_not_begun_may_be_begun_again(
    state: CommandState, fields: dict[str, Any], began: bool
) -> None:
    moved = part_moved(command(state, reason="because", **fields))
    assert moved is not None
    assert (moved.state, moved.began, moved.failure) == (PartState.OVER, began, "because")


def test_an_end_is_told_as_its_host_tells_it() -> None:
    moved = part_moved(done(PartResult(machine="m", exit_code=7, began=True)))
    assert moved is not None
    assert (moved.state, moved.exit_code, moved.failure) == (PartState.OVER, 7, "")
    result = PartResult(failure="It broke.", environment=True, final=True)
    failed = part_moved(done(result))
    assert failed is not None
    assert (failed.failure, failed.began) == ("It broke.", False)
    assert failed.blames_environment
    assert failed.final


def test_a_machine_that_stands_runs_and_one_that_is_ready_is_over() -> None:
    standing = done(PartResult(machine="m", standing=True, began=True), arguments={"request": {}})
    moved = part_moved(standing)
    assert moved is not None
    assert (moved.state, moved.machine) == (PartState.RUNNING, "m")
    assert is_standing(standing)
    ready = done(PartResult(machine="m", began=True), arguments={"request": {}})
    over = part_moved(ready)
    assert over is not None
    assert (over.state, over.failure) == (PartState.OVER, "")
    assert not is_standing(ready)


@pytest.mark.parametrize("value", [None, 7, {"exit_code": "x"}, {"machine": 3}])
def test_an_end_that_makes_no_sense_is_a_failure_that_is_not_repeated(value: Any) -> None:
    moved = part_moved(command(CommandState.DONE, value=value))
    assert moved is not None
    assert moved.state is PartState.OVER
    assert moved.began
    assert "nothing sensible" in moved.failure


def test_a_job_that_was_not_run_has_not_succeeded() -> None:
    moved = part_moved(done(PartResult(machine="m")))
    assert moved is not None
    assert moved.failure
    assert not moved.began
