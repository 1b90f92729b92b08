"""Grid Engine's starter_method, in each of the ways in which a queue may start its jobs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.batch.starter.double import Door

SHOW = 'echo "$0|$1|$2"; exit 4\n'


class Spool:
    """What an execution host keeps of a job."""

    def __init__(self, directory: Path) -> None:
        (directory / "job_scripts").mkdir()
        (directory / "active_jobs").mkdir()
        self.script = directory / "job_scripts" / "5"
        self.script.write_text("#!/bin/bash\n" + SHOW)
        self.script.chmod(0o755)
        self.config = directory / "active_jobs" / "config"
        self.configure(binary=False)

    def configure(
        self, *, binary: bool, no_shell: bool = False, command: Sequence[str] = ("x",)
    ) -> None:
        lines = ["queue=main.q", f"handle_as_binary={binary:d}", f"no_shell={no_shell:d}"]
        lines += [f"script_file={command[0]}", f"njob_args={len(command) - 1}"]
        lines += [f"job_arg{number}={word}" for number, word in enumerate(command[1:], 1)]
        self.config.write_text("\n".join(lines) + "\n")

    def variables(
        self, mode: str, shell: str = "/bin/sh", *, login: bool = False
    ) -> dict[str, str]:
        found = {
            "JOB_ID": "5",
            "SGE_TASK_ID": "undefined",
            "SGE_JOB_SPOOL_DIR": str(self.config.parent),
            "SGE_STARTER_SHELL_PATH": shell,
            "SGE_STARTER_SHELL_START_MODE": mode,
        }
        return {**found, "SGE_STARTER_USE_LOGIN_SHELL": "true"} if login else found


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path)


Told = tuple[list[bytes], list[bytes], list[bytes]]


def told_and_run(door: Door, *words: str | Path, **how: object) -> tuple[Told, int, bytes]:
    """What the door is told (starting words, script, arguments), and what runs without it."""
    process = door.start(*words, **how)  # type: ignore[arg-type]
    visit = door.accept()
    told = tuple(visit.fields.get(tag, []) for tag in ("r", "n", "a"))
    visit.answer(b"P")
    code, out, _ = door.finish(process)
    return (told[0], told[1], told[2]), code, out


@pytest.mark.parametrize("mode", ["unix_behavior", "raw_exec"])
def test_a_script_is_started_by_its_first_line(door: Door, spool: Spool, mode: str) -> None:
    told, code, out = told_and_run(
        door, spool.script, "a b", "", variables=spool.variables(mode, "/bin/false")
    )
    assert told == ([], [bytes(spool.script)], [b"a b", b""])
    assert (code, out) == (4, f"{spool.script}|a b|\n".encode())


def test_a_script_is_started_by_the_shell_of_the_queue(door: Door, spool: Spool) -> None:
    spool.script.write_text("#!/bin/false\n" + SHOW)
    told, code, out = told_and_run(
        door, spool.script, "x", variables=spool.variables("posix_compliant")
    )
    assert told == ([b"/bin/sh"], [bytes(spool.script)], [b"x"])
    assert (code, out) == (4, f"{spool.script}|x|\n".encode())


def test_the_script_itself_is_handed_over(door: Door, spool: Spool) -> None:
    process = door.start(
        spool.script, variables={**spool.variables("posix_compliant"), "ENCAMP_ENVIRONMENT": "sl7"}
    )
    visit = door.accept()
    assert visit.only("p") == spool.script.read_bytes()
    assert visit.only("e") == b"sl7"
    assert visit.only("s") == b"gridengine"
    visit.ended(0)
    door.finish(process)


def test_a_login_shell_is_told_to_be_one(door: Door, spool: Spool) -> None:
    spool.script.write_text("shopt login_shell\n")
    variables = spool.variables("posix_compliant", "/bin/bash", login=True)
    told, _, out = told_and_run(door, spool.script, variables=variables)
    assert told == ([b"/bin/bash", b"-l"], [bytes(spool.script)], [])
    assert out.split() == [b"login_shell", b"on"]


def test_a_script_is_started_as_a_command_of_the_shell(door: Door, spool: Spool) -> None:
    told, code, out = told_and_run(
        door, spool.script, "lost", variables=spool.variables("start_as_command")
    )
    assert told == ([b"/bin/sh", b"-c"], [bytes(spool.script)], [])
    assert (code, out) == (4, f"{spool.script}||\n".encode())


def test_a_script_may_be_the_input_of_the_shell(door: Door, spool: Spool) -> None:
    with spool.script.open("rb") as stdin:
        told, code, out = told_and_run(
            door, "-s", "x", variables=spool.variables("script_from_stdin"), stdin=stdin
        )
    assert told == ([], [], [b"/bin/sh", b"-s", b"x"])
    assert (code, out) == (4, b"/bin/sh|x|\n")


def test_a_command_is_found_where_only_words_of_scripts_are_given(door: Door, spool: Spool) -> None:
    spool.configure(binary=True, command=["echo", "$JOB_ID", "a b"])
    told, code, out = told_and_run(
        door, "-s", "$JOB_ID", "a b", variables=spool.variables("script_from_stdin")
    )
    assert told == ([], [], [b"/bin/sh", b"-c", b"echo $JOB_ID a b "])
    assert (code, out) == (0, b"5 a b\n")


def test_a_command_is_given_to_the_shell_as_one_line(door: Door, spool: Spool) -> None:
    spool.configure(binary=True)
    told, code, out = told_and_run(
        door, "echo", "$JOB_ID", "", "a  b", variables=spool.variables("posix_compliant")
    )
    assert told == ([], [], [b"/bin/sh", b"-c", b'echo $JOB_ID "" a  b '])
    assert (code, out) == (0, b"5  a b\n")


@pytest.mark.parametrize("login", [False, True])
@pytest.mark.parametrize(
    ("shell", "out"), [("/bin/bash", b"bash a b 5\n"), ("/not/there/zsh", b"another a b 5\n")]
)
def test_a_command_does_with_any_shell_where_the_queues_is_missing(
    door: Door, spool: Spool, shell: str, out: bytes, login: bool
) -> None:
    spool.configure(binary=True)
    variables = spool.variables("posix_compliant", shell, login=login)
    words = ("echo", "${BASH_VERSION:+bash}${BASH_VERSION:-another}", "a b", "$JOB_ID")
    (_, _, told), *_ = told_and_run(door, *words, variables=variables)
    given = {"PATH": "/usr/bin:/bin", "JOB_ID": "5", "HOME": str(spool.config.parent)}
    done = subprocess.run(told, env=given, capture_output=True, check=False)
    assert re.sub(rb"^bash\S+", b"bash", done.stdout) == out
    assert done.returncode == 0


def test_a_command_without_shell_is_run_as_it_is(door: Door, spool: Spool) -> None:
    spool.configure(binary=True, no_shell=True)
    told, code, out = told_and_run(
        door, "echo", "$JOB_ID", "", "a  b", variables=spool.variables("posix_compliant")
    )
    assert told == ([], [], [b"echo", b"$JOB_ID", b"", b"a  b"])
    assert (code, out) == (0, b"$JOB_ID  a  b\n")


@pytest.mark.parametrize("dash", ["", "-"])
def test_it_may_be_called_by_a_name_that_says_it_all(door: Door, tmp_path: Path, dash: str) -> None:
    link = tmp_path / "encamp-starter-gridengine"
    link.symlink_to(door.program)
    name = f"{dash}encamp-starter-gridengine"
    told, _, out = told_and_run(door, "--", "x", program=[name, "echo"], executable=link)
    assert told == ([], [], [b"echo", b"--", b"x"])
    assert out == b"-- x\n"


def test_a_command_that_looks_like_a_batch_system_is_a_command(door: Door, spool: Spool) -> None:
    spool.configure(binary=True, no_shell=True)
    variables = spool.variables("unix_behavior")
    told, _, _ = told_and_run(door, "env", "--", "true", variables=variables)
    assert told == ([], [], [b"env", b"--", b"true"])


def test_a_command_of_qrsh_is_run_as_it_is(door: Door, spool: Spool) -> None:
    spool.config.unlink()
    told, _, out = told_and_run(door, "echo", "x", variables=spool.variables("unix_behavior", ""))
    assert told == ([], [], [b"echo", b"x"])
    assert out == b"x\n"


def test_words_for_another_host_of_a_job_are_split_by_a_shell(door: Door, spool: Spool) -> None:
    spool.config.write_text("handle_as_binary=0\nno_shell=0\npe_task_id=1.node2\n")
    variables = spool.variables("unix_behavior", "")
    told, _, out = told_and_run(door, "echo", "$JOB_ID; echo y", variables=variables)
    assert told == ([], [], [b"/bin/sh", b"-c", b"echo $JOB_ID; echo y "])
    assert out == b"5\ny\n"


def test_words_of_qrsh_are_split_by_a_shell(door: Door, spool: Spool) -> None:
    """Grid Engine names none, and would have taken any."""
    spool.configure(binary=True, no_shell=False)
    variables = spool.variables("unix_behavior", "")
    told, _, out = told_and_run(door, "echo x;", "echo y", variables=variables)
    assert told == ([], [], [b"/bin/sh", b"-c", b"echo x; echo y "])
    assert out == b"x\ny\n"
