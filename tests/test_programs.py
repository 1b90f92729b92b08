"""Programs run by Encamp do not outlive what they were run for."""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any

import pytest

from encamp import programs
from encamp.model.errors import EncampError


def members(group: int) -> list[int]:
    listed = subprocess.run(["ps", "-eo", "pid=,pgid="], capture_output=True, text=True, check=True)
    pairs = (map(int, line.split()) for line in listed.stdout.splitlines())
    return [pid for pid, its_group in pairs if its_group == group]


def test_a_program_whose_start_is_interrupted_does_not_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[int] = []
    begin: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]

    def interrupted(process: subprocess.Popen[str], *arguments: Any) -> None:
        begin(process, *arguments)
        started.append(process.pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "_execute_child", interrupted)
    with pytest.raises(KeyboardInterrupt):
        programs.run(["sleep", "600"], purpose="sleeping")
    monkeypatch.undo()
    assert members(started[0]) == []


def test_children_of_a_program_are_gone_when_it_is_ended() -> None:
    process: programs.Program[str] = programs.Program(
        ["sh", "-c", "trap '' TERM; sleep 600 & echo $!; exec sleep 601"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout as output:
        child = int(output.readline())
    programs.end_group(process)
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_silent_program_is_ended() -> None:
    began = time.monotonic()
    with pytest.raises(EncampError, match="failed") as error:
        programs.run(["sleep", "600"], purpose="sleeping", silence=0.2)
    assert "nothing for 0 seconds" in (error.value.detail or "")
    assert time.monotonic() - began < 300
    assert not programs.RUNNING
