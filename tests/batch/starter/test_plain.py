"""Jobs that no environment is meant for run as they would have without the starter."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.batch.starter.double import Door, Process


def plainly(door: Door, process: Process, input: bytes | None = None) -> tuple[int, bytes, bytes]:
    visit = door.accept()
    visit.answer(b"P")
    return door.finish(process, input)


def script_of_job(
    directory: Path, door: Door, text: str, mode: int = 0o700, environment: str = ""
) -> Path:
    """As slurmd puts it there."""
    (directory / "job00017").mkdir()
    script = directory / "job00017" / "slurm_script"
    script.write_text(f"#!{door.program} slurm:{environment}\n{text}")
    script.chmod(mode)
    return script


def test_a_command_runs_with_its_arguments_input_variables_and_exit_code(door: Door) -> None:
    words = ["sh", "-c", 'cat; echo "$V|$1|$2"; echo bad >&2; exit 7', "x", "a b", ""]
    process = door.start("slurm:", "--", *words, variables={"V": "value"})
    assert plainly(door, process, b"input\n") == (7, b"input\nvalue|a b|\n", b"bad\n")


def test_a_job_that_is_to_be_left_alone_does_not_need_the_agent(
    closed_door: Door, tmp_path: Path
) -> None:
    process = closed_door.start("slurm:none", "--", "echo", "x")
    assert closed_door.finish(process) == (0, b"x\n", b"")
    script = script_of_job(tmp_path, closed_door, "#!/bin/sh\necho $0\n", environment="none")
    process = closed_door.start(program=[script], variables={"SLURM_JOB_ID": "17"})
    assert closed_door.finish(process) == (0, f"{script}\n".encode(), b"")
    variables = {"ENCAMP_ENVIRONMENT": "none", "A": "1"}
    process = closed_door.start("gridengine", "/usr/bin/env", variables=variables)
    assert closed_door.finish(process) == (0, b"PATH=/usr/bin:/bin\nA=1\n", b"")


def test_a_command_finds_its_signals_and_descriptors_as_they_were(door: Door) -> None:
    def change() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGUSR1})

    show = ["grep", "-E", "SigBlk|SigIgn", "/proc/self/status"]
    code, out, _ = plainly(door, door.start("slurm:", "--", *show, preexec_fn=change))
    lines = out.split()
    assert code == 0
    assert int(lines[1], 16) == 1 << (signal.SIGUSR1 - 1)
    assert int(lines[3], 16) & 1 << (signal.SIGHUP - 1)
    assert not int(lines[3], 16) & 1 << (signal.SIGTERM - 1)
    _, out, _ = plainly(door, door.start("slurm:", "--", "ls", "/proc/self/fd"))
    assert out.split() == [b"0", b"1", b"2", b"3"], "the last is the directory that ls reads"


@pytest.mark.parametrize("mode", [0o700, 0o500])
def test_a_script_of_slurm_runs_under_its_own_name_with_its_own_lines(
    door: Door, tmp_path: Path, mode: int
) -> None:
    script = script_of_job(tmp_path, door, '#!/bin/bash\necho "$0 $LINENO $1"\nexit 5\n', mode)
    process = door.start("a b", program=[script], variables={"SLURM_JOB_ID": "17"})
    assert plainly(door, process) == (5, f"{script} 2 a b\n".encode(), b"")
    assert script.read_text().startswith("#!/bin/bash\n")


def test_a_script_of_slurm_runs_with_its_own_interpreter(door: Door, tmp_path: Path) -> None:
    script = script_of_job(tmp_path, door, '#!/usr/bin/perl -w\nprint "$0 @ARGV\\n"; exit 3;\n')
    process = door.start("x", program=[script], variables={"SLURM_JOB_ID": "17"})
    assert plainly(door, process) == (3, f"{script} x\n".encode(), b"")


def test_a_script_of_somebody_runs_and_stays_as_it_was(door: Door, tmp_path: Path) -> None:
    script = tmp_path / "mine"
    script.write_text(f'#!{door.program} slurm:\n#!/bin/bash\necho "$LINENO $1"\n')
    script.chmod(0o700)
    before = script.read_bytes()
    process = door.start("x", program=[script], variables={"SLURM_JOB_ID": "17"})
    assert plainly(door, process) == (0, b"2 x\n", b"")
    assert script.read_bytes() == before


def test_a_second_name_of_the_script_keeps_its_text(door: Door, tmp_path: Path) -> None:
    script = script_of_job(tmp_path, door, "#!/bin/sh\necho $1\n")
    os.link(script, tmp_path / "other")
    before = script.read_bytes()
    process = door.start("x", program=[script], variables={"SLURM_JOB_ID": "17"})
    assert plainly(door, process) == (0, b"x\n", b"")
    assert script.read_bytes() == before


def test_a_script_without_an_interpreter_is_the_shells(door: Door, tmp_path: Path) -> None:
    script = script_of_job(tmp_path, door, "echo $1\n")
    process = door.start("x", program=[script], variables={"SLURM_JOB_ID": "17"})
    assert plainly(door, process) == (0, b"x\n", b"")


@pytest.mark.parametrize(("command", "code"), [("nosuchcommand", 127), ("/etc/passwd", 126)])
def test_what_cannot_be_run_says_so(door: Door, command: str, code: int) -> None:
    process = door.start("slurm:", "--", command)
    ended, out, err = plainly(door, process)
    assert (ended, out) == (code, b"")
    assert err.startswith(f"encamp: {command} cannot be run: ".encode())


def test_a_job_of_grid_engine_that_cannot_be_run_is_held(door: Door, tmp_path: Path) -> None:
    """As Grid Engine does it itself."""
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "config").write_text("handle_as_binary=1\nno_shell=1\n")
    variables = {
        "JOB_ID": "5",
        "SGE_JOB_SPOOL_DIR": str(tmp_path / "spool"),
        "SGE_STARTER_SHELL_PATH": "/bin/sh",
        "SGE_STARTER_SHELL_START_MODE": "unix_behavior",
        "ENCAMP_ENVIRONMENT": "none",
    }
    process = door.start("/no/such/program", variables=variables)
    code, out, err = door.finish(process)
    assert (code, out) == (100, b"")
    assert err.startswith(b"encamp: /no/such/program cannot be run: ")
