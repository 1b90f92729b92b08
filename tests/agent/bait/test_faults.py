"""What an environment is blamed for, and what says nothing about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from encamp.agent.bait.errand import Carried, Fault, told_of
from encamp.agent.bait.failing import Failing
from encamp.agent.bait.housing import fault_of
from encamp.agent.bait.probing import PROBE, Probing
from encamp.agent.commands.directory import CommandDirectory, Request, Result
from encamp.agent.commands.stage import IMAGE, START, Stage
from encamp.agent.commands.supervising import Commands
from encamp.agent.commands.tracked import Tracked
from encamp.describe.settings import SettingsError
from encamp.machines.engine import MachineKilledError
from encamp.model.command import CommandState
from encamp.model.errors import Code, EncampError
from encamp.model.property import Value


def test_job_is_told_what_a_failed_build_has_said_last() -> None:
    """Its output is nowhere else that the job's user could look."""
    failed = EncampError(
        Code.BUILD_FAILED, "It failed.", "See its output.", detail="first\nE: no such package\n \n"
    )
    assert told_of(failed) == "It failed. It said: E: no such package"
    assert "See its output." in told_of(EncampError(Code.BUILD_FAILED, "It failed.", failed.hint))
    assert told_of(EncampError(Code.NO_ROOM, "It is full.", "Ask for less.")) == "It is full."


@pytest.mark.parametrize(
    ("error", "fetching", "fault"),
    [
        (EncampError(Code.DISK_FULL, "The disk is full."), False, None),
        (EncampError(Code.DISK_FULL, "The disk is full."), True, None),
        (EncampError(Code.NO_ROOM, "There is no room."), False, None),
        (SettingsError(Code.CONFIGURATION, "There is a mistake in settings.yaml."), False, None),
        (SettingsError(Code.CONFIGURATION, "There is a mistake in settings.yaml."), True, None),
        (EncampError(Code.BUILD_FAILED, "It cannot be built."), True, Fault.UNFETCHED),
        (EncampError(Code.NO_ANSWER, "It does not answer."), False, Fault.UNCLEAR),
        (MachineKilledError(Code.MACHINE_LOST, "It was killed."), False, Fault.KILLED),
    ],
)
def test_machine_that_does_not_come_up_is_blamed_on_whom_it_may_be(
    error: EncampError, fetching: bool, fault: Fault | None
) -> None:
    assert fault_of(error, fetching=fetching) is fault


class Listening:
    """To what came of the agent's own trials."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def tried(self, environment: str, failure: str, now: float) -> None:
        self.heard.append((environment, failure))


def trial(path: Path, state: CommandState, phase: str, value: Value = None) -> Tracked:
    """One that is over."""
    directory = CommandDirectory(path / f"{PROBE}1")
    arguments: dict[str, Value] = {"environment": "sl7"}
    directory.journal(
        Request(
            id=directory.id,
            name="probe",
            arguments=arguments,
            issuer="root",
            timeout=1.0,
            received=1.0,
        )
    )
    directory.begin(2.0)
    tracked = Tracked(directory, is_new=True)
    tracked.result = Result(state=state, reason="Too late.", value=value, stage=Stage(phase))
    return tracked


@pytest.mark.parametrize(
    ("state", "phase", "value", "heard"),
    [
        (CommandState.TIMED_OUT, IMAGE, None, []),
        (CommandState.TIMED_OUT, "", None, []),
        (CommandState.TIMED_OUT, START, None, [("sl7", "Too late.")]),
        (CommandState.DONE, START, {"came_up": True}, [("sl7", "")]),
        (CommandState.DONE, IMAGE, {"failure": "full"}, []),
        (CommandState.LOST, START, None, []),
    ],
)
def test_trial_that_took_too_long_over_an_image_says_nothing(
    tmp_path: Path, state: CommandState, phase: str, value: Value, heard: list[Any]
) -> None:
    listening = Listening()
    probing = Probing(cast("Commands", None), cast("Failing", listening), is_full=lambda: False)
    assert probing.got_on(trial(tmp_path, state, phase, value))
    assert listening.heard == heard
    assert Carried().fault is None
