"""Programs run by Encamp do not outlive what they were run for."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from encamp import programs
from encamp.model.errors import EncampError


def members(group: int) -> list[int]:
    """The processes of a group, as the kernel lists them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name, in brackets, may hold anything.
            _, _, fields = path.read_text().rpartition(")")
            if int(fields.split()[2]) == group:
                found.append(int(path.parent.name))
    return found


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
    # It is nobody's child any more, and a zombie until init looks.
    with contextlib.suppress(psutil.NoSuchProcess):
        assert psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_a_program_that_has_sigterm_blocked_from_us_is_ended_by_what_it_hears(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[int] = []
    send = os.killpg

    def noted(pid: int, number: int) -> None:
        sent.append(number)
        send(pid, number)

    monkeypatch.setattr(os, "killpg", noted)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        process: programs.Program[str] = programs.Program(["sleep", "600"], text=True)
        programs.end_group(process)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert sent[0] == signal.SIGKILL
    assert process.returncode == -signal.SIGKILL


def test_a_silent_program_is_ended() -> None:
    began = time.monotonic()
    with pytest.raises(EncampError, match="failed") as error:
        programs.run(["sleep", "600"], purpose="sleeping", silence=0.2)
    assert "nothing for 0 seconds" in (error.value.detail or "")
    assert time.monotonic() - began < 300
    assert not programs.RUNNING


def test_output_without_end_is_not_kept() -> None:
    seen = [0, 0]

    def on_line(line: str) -> None:
        seen[0] += len(line)
        seen[1] = max(seen[1], len(line))

    command = ["sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' x; echo; yes | head -n 1000"]
    assert programs.run(command, purpose="talking", on_line=on_line) == ""
    assert seen[0] == 1_001_000
    assert seen[1] <= programs.LONGEST_LINE


def test_a_program_that_says_too_much_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "MOST_OUTPUT", 100_000)
    with pytest.raises(EncampError, match="says too much"):
        programs.run(["yes"], purpose="talking")
    assert not programs.RUNNING
