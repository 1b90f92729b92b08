"""If a starter is killed, nobody learns it before it is decided what becomes of its job: neither
the batch system, which would forget the job, nor anybody else."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import psutil
import pytest

from encamp.agent.bait import frames
from encamp.agent.bait.frames import read_job
from encamp.agent.bait.starter import is_held, process_state
from tests.batch.starter.double import PATIENCE, Door, Process, Visit, guards

WORDS = ("/bin/true", "one")


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline, "it does not come about"
        time.sleep(0.01)


def state(pid: int) -> str:
    found = process_state(pid)
    return "" if found is None else found[0]


def tracer(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("TracerPid:")[2].split()[0])


def files_of(pid: int) -> set[str]:
    found = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # It has just been closed.
            found.add(str(file.readlink()))
    return found


def guard_of(process: Process) -> int:
    wait_for(lambda: tracer(process.pid))
    assert guards(process.pid) == [tracer(process.pid)]
    return tracer(process.pid)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script"
    path.write_text("#!/usr/lib/encamp/encamp-starter slurm:mini\necho done\n")
    return path


@pytest.fixture
def absent(guarded_program: Path) -> Iterator[Door]:
    """A door that nobody opens."""
    door = Door(guarded_program)
    try:
        yield door
    finally:
        door.end()


def killed(door: Door, process: Process) -> Visit:
    """Its guard, at the door."""
    guard = guard_of(process)
    process.kill()
    visit = door.accept()
    assert (visit.pid, read_job(visit.payload).over) == (guard, process.pid)
    return visit


def test_nobody_learns_of_a_starters_end_before_it_is_decided(door: Door, script: Path) -> None:
    process = door.start("slurm:mini", script, variables={"SLURM_JOB_ID": "17"})
    door.accept().answer(b"B")
    first = killed(door, process)
    asked = read_job(first.payload)
    assert (asked.system, asked.id, asked.script, asked.variables) == ("slurm", "17", None, {})
    assert is_held(process.pid, first.pid)
    assert not is_held(process.pid, os.getpid())
    first.__exit__(None, None, None)  # The agent is killed, and another one comes.
    second = door.accept()
    assert second.pid == first.pid
    assert process.poll() is None
    second.answer(b"T", b"\0\0\0\0")
    third = door.accept()
    assert process.poll() is None
    third.answer(b"P")
    assert door.finish(process)[0] == -signal.SIGKILL
    wait_for(lambda: not Path(f"/proc/{third.pid}").exists())


def test_nobody_learns_of_the_end_of_a_starter_that_was_stopped_together_with_its_guard(
    door: Door, script: Path
) -> None:
    """Whatever the guard was about to do: what has happened by the time it goes on is another
    thing."""
    for round in range(40):
        process = door.start("slurm:mini", script)
        guard = guard_of(process)
        visit = door.accept()
        visit.answer(b"B")
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(round % 20 * 2e-6)
        os.kill(guard, signal.SIGSTOP)
        wait_for(lambda guard=guard: state(guard) in "Tt")  # type: ignore[misc]
        process.kill()
        os.kill(guard, signal.SIGCONT)
        over = door.accept()
        assert (over.pid, process.poll()) == (guard, None)
        over.answer(b"P")
        assert door.finish(process)[0] == -signal.SIGKILL


@pytest.mark.parametrize("when", ["before the door opens", "while its job runs"])
def test_a_guard_that_is_killed_has_a_successor(
    door: Door, absent: Door, script: Path, when: str
) -> None:
    waits = when.startswith("before")
    process = (absent if waits else door).start("slurm:mini", script)
    if not waits:
        door.accept().answer(b"B")
    for _ in range(3):
        guard = guard_of(process)
        os.kill(guard, signal.SIGKILL)
        wait_for(lambda guard=guard: tracer(process.pid) not in (0, guard))  # type: ignore[misc]
    successor = guard_of(process)
    assert not is_held(process.pid, successor)
    process.kill()
    wait_for(lambda: is_held(process.pid, successor))
    if not waits:
        visit = door.accept()
        assert (visit.pid, read_job(visit.payload).over) == (successor, process.pid)
        visit.answer(b"P")
        assert door.finish(process)[0] == -signal.SIGKILL
    else:
        os.kill(successor, signal.SIGKILL)
        assert absent.finish(process)[0] == -signal.SIGKILL


@pytest.mark.parametrize("renewed", [False, True])
def test_tasks_outlive_starter_and_agent_whichever_guard_there_is(
    door: Door, tmp_path: Path, renewed: bool
) -> None:
    """Grid Engine ends a job for good of which it sees a task die."""
    place = tmp_path / "job_scripts"
    place.mkdir()
    (place / "5").write_text("#!/bin/sh\n")
    variables = {
        "ENCAMP_ENVIRONMENT": "mini",
        "JOB_ID": "5",
        "SGE_JOB_SPOOL_DIR": str(tmp_path),
        "SGE_STARTER_SHELL_PATH": "/bin/sh",
        "SGE_STARTER_SHELL_START_MODE": "unix_behavior",
    }
    process = door.start(place / "5", variables=variables)
    visit = door.accept()
    visit.answer(b"B")
    words = frames.call_words("/bin/sleep", [b"sleep", b"600"], {}, b"/")
    paper = os.memfd_create("words")
    os.write(paper, words)
    nothing = os.open(os.devnull, os.O_RDWR)
    socket.send_fds(visit._connection, [frames.call(1)], [nothing, nothing, nothing, paper])
    os.close(paper)
    os.close(nothing)
    wait_for(lambda: tasks(process))
    [task] = tasks(process)
    if renewed:
        guard = guard_of(process)
        os.kill(guard, signal.SIGKILL)
        wait_for(lambda: tracer(process.pid) not in (0, guard))
    second = killed(door, process)
    second.__exit__(None, None, None)  # The agent is killed, and another one comes.
    third = door.accept()
    try:
        assert state(task) == "S"
        assert not Path(f"/proc/{third.pid}/task/{third.pid}/children").read_text()
    finally:
        os.kill(task, signal.SIGKILL)
    third.answer(b"P")
    assert door.finish(process)[0] == -signal.SIGKILL


def tasks(process: Process) -> list[int]:
    return [each.pid for each in psutil.Process(process.pid).children() if each.name() == "sleep"]


def test_it_holds_nothing_of_the_job_and_does_not_look_like_its_starter(
    door: Door, script: Path
) -> None:
    process = door.start("slurm:mini", script, "one", "two")
    guard = guard_of(process)
    wait_for(lambda: Path(f"/proc/{guard}/cmdline").read_bytes().rstrip(b"\0") == b"encamp-guard")
    wait_for(lambda: files_of(guard) == {"/dev/null"})
    assert os.getpgid(guard) == guard
    door.accept().ended(0)
    assert door.finish(process)[0] == 0


@pytest.mark.parametrize(
    ("code", "is_signal", "status"),
    [(0, False, 0), (7, False, 7), (15, True, -15), (9, True, -9), (11, True, -11)],
)
def test_a_starter_that_ends_as_its_job_did_ends_at_once(
    door: Door, script: Path, code: int, is_signal: bool, status: int
) -> None:
    """Also one whose job was killed, in its machine."""
    process = door.start("slurm:mini", script)
    guard = guard_of(process)
    visit = door.accept()
    visit.answer(b"B")
    visit.ended(code, signal=is_signal)
    assert door.finish(process)[0] == status
    wait_for(lambda: not Path(f"/proc/{guard}").exists())
    assert not door.is_asked()


def test_a_job_without_a_machine_has_no_guard(door: Door, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\ngrep TracerPid /proc/$$/status; kill -9 $$\n")
    script.chmod(0o755)
    process = door.start("slurm:", script)
    guard = guard_of(process)
    door.accept().answer(b"P")
    code, out, _ = door.finish(process)
    assert (code, out) == (-9, b"TracerPid:\t0\n")
    assert not Path(f"/proc/{guard}").exists()


@pytest.mark.parametrize("words", [("slurm:mini", "--", "true"), ("else:mini", "--", "true")])
def test_what_cannot_be_queued_again_has_no_guard(door: Door, words: tuple[str, ...]) -> None:
    process = door.start(*words)
    visit = door.accept()
    assert guards(process.pid) == []
    visit.ended(0)
    assert door.finish(process)[0] == 0


def test_it_stops_and_goes_on_as_without_a_guard(door: Door, script: Path) -> None:
    process = door.start("slurm:mini", script)
    guard_of(process)
    visit = door.accept()
    visit.answer(b"B")
    for _ in range(3):
        os.kill(process.pid, signal.SIGSTOP)
        wait_for(lambda: state(process.pid) in "Tt")
        time.sleep(0.05)
        assert state(process.pid) in "Tt"
        os.kill(process.pid, signal.SIGCONT)
        wait_for(lambda: state(process.pid) == "S")
    os.kill(process.pid, signal.SIGSTOP)
    wait_for(lambda: state(process.pid) in "Tt")
    visit.ended(3)
    time.sleep(0.1)
    assert process.poll() is None
    os.kill(process.pid, signal.SIGCONT)
    assert door.finish(process)[0] == 3


def test_a_signal_that_asks_to_stop_and_reaches_both_is_the_jobs_and_stops_neither(
    door: Door, script: Path
) -> None:
    """As Grid Engine sends it, to whatever carries the job's group."""
    process = door.start("slurm:mini", script)
    visit = door.accept()
    visit.answer(b"B")
    guard = guard_of(process)
    for number in (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
        for pid in (guard, process.pid):
            os.kill(pid, number)
        tag, told = visit.frame()
        assert (tag, told[0]) == (b"S", number)
        wait_for(lambda: state(process.pid) == "S")
        assert state(guard) == "S"
    visit.ended(0)
    assert door.finish(process)[0] == 0


def test_it_goes_on_when_both_were_stopped_together(door: Door, script: Path) -> None:
    """As batch systems do that stop every process of a job."""
    process = door.start("slurm:mini", script)
    both = (process.pid, guard_of(process))
    visit = door.accept()
    visit.answer(b"B")
    for order in (both, both[::-1]):
        for pid in order:
            os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: all(state(pid) in "Tt" for pid in both))
        for pid in order:
            os.kill(pid, signal.SIGCONT)
        wait_for(lambda: all(state(pid) == "S" for pid in both))
    visit.ended(5)
    assert door.finish(process)[0] == 5


def test_a_starter_whose_guard_is_killed_goes_on(door: Door, script: Path) -> None:
    process = door.start("slurm:mini", script)
    os.kill(guard_of(process), signal.SIGKILL)
    visit = door.accept()
    visit.answer(b"B")
    visit.ended(4)
    assert door.finish(process)[0] == 4


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_guard_that_is_ended_too_lets_go(door: Door, script: Path, number: int) -> None:
    """A batch system ends every process of a job."""
    process = door.start("slurm:mini", script)
    door.accept().answer(b"B")
    visit = killed(door, process)
    os.kill(visit.pid, number)
    assert door.finish(process)[0] == -signal.SIGKILL


def commands(directory: Path, *names: str) -> Path:
    """Stand in for the batch system's; each notes how it was called."""
    for name in names:
        path = directory / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{directory}/called\n')
        path.chmod(0o755)
    return directory / "called"


def test_without_an_agent_it_gives_the_job_back_itself(
    absent: Door, script: Path, tmp_path: Path
) -> None:
    called = commands(tmp_path, "scontrol")
    variables = {"SLURM_JOB_ID": "17", "PATH": f"{tmp_path}:/usr/bin:/bin"}
    process = absent.start("slurm:mini", script, variables=variables)
    guard_of(process)
    process.kill()
    assert absent.finish(process)[0] == -signal.SIGKILL
    assert called.read_text() == "scontrol requeue incomplete 17\n"


def test_a_job_whose_command_has_ended_is_not_given_back(
    door: Door, script: Path, tmp_path: Path
) -> None:
    """Nobody has told yet how, and its agent may never."""
    called = commands(tmp_path, "scontrol")
    variables = {"SLURM_JOB_ID": "17", "PATH": f"{tmp_path}:/usr/bin:/bin"}
    process = door.start("slurm:mini", script, variables=variables)
    guard = guard_of(process)
    visit = door.accept()
    visit.answer(b"B")
    visit.answer(b"D")
    visit.answer(b"N", b"told")
    assert process.stderr is not None
    assert b"told" in os.read(process.stderr.fileno(), 100)
    process.kill()
    assert door.finish(process)[0] == -signal.SIGKILL
    wait_for(lambda: not Path(f"/proc/{guard}").exists())
    assert not door.is_asked()
    assert not called.exists()


def test_a_signal_that_the_job_has_outlived_does_not_end_its_guard(
    door: Door, script: Path
) -> None:
    """As `scancel --full --signal=TERM` sends it to every process of a job."""
    process = door.start("slurm:mini", script)
    guard = guard_of(process)
    door.accept().answer(b"B")
    os.kill(guard, signal.SIGTERM)
    visit = killed(door, process)
    time.sleep(0.1)
    assert process.poll() is None
    visit.answer(b"P")
    assert door.finish(process)[0] == -signal.SIGKILL


def gridengine(spool: Path, tmp_path: Path) -> dict[str, str]:
    spool.mkdir()
    (spool / "config").write_text("handle_as_binary=1\nno_shell=1\n")
    (spool / "trace").write_text("11/17/2026 06:00:00 [1000:7]: child: starting job\n")
    return {
        "JOB_ID": "5",
        "SGE_TASK_ID": "2",
        "RESTARTED": "0",
        "SGE_JOB_SPOOL_DIR": str(spool),
        "SGE_STARTER_SHELL_PATH": "/bin/sh",
        "SGE_STARTER_SHELL_START_MODE": "unix_behavior",
        "SGE_BINARY_PATH": str(tmp_path),
        "PATH": "/nowhere",
        "ENCAMP_ENVIRONMENT": "mini",
    }


def given_back(absent: Door, tmp_path: Path, **variables: str) -> list[str]:
    """What the guard of a killed starter has Grid Engine do."""
    words = gridengine(tmp_path / "spool", tmp_path) | variables
    process = absent.start(*WORDS, variables=words)
    guard_of(process)
    process.kill()
    assert absent.finish(process)[0] == -signal.SIGKILL
    return (tmp_path / "called").read_text().splitlines()


def test_without_an_agent_it_has_grid_engine_begin_the_job_again_later(
    absent: Door, tmp_path: Path
) -> None:
    commands(tmp_path, "qmod", "qalter")
    script = tmp_path / "qalter"
    script.write_text(f"{script.read_text()}echo $TZ >{tmp_path}/zone\n")
    before = time.time()
    put_off, *done = given_back(absent, tmp_path, TZ="Asia/Tokyo")
    assert (tmp_path / "zone").read_text() == "UTC0\n"
    start = re.fullmatch(r"qalter -a ([0-9]{12}\.[0-9]{2}) 5", put_off)
    assert start is not None
    later = datetime.strptime(f"{start[1]} +0000", "%Y%m%d%H%M.%S %z").timestamp() - before
    assert 299 <= later <= 300 + PATIENCE
    assert done == [
        "qalter -ac encamp_2=Encamp: its starter was killed and no agent came 5",
        "qmod -rj 5.2",
    ]


HELD = [
    "qalter -ac encamp_2=Encamp: its starter was killed and no agent came; qrls lets it go 5",
    "qalter -h u 5.2",
    "qmod -rj 5.2",
]


def test_without_an_agent_it_has_grid_engine_hold_a_job_that_was_begun_before(
    absent: Door, tmp_path: Path
) -> None:
    commands(tmp_path, "qmod", "qalter")
    assert given_back(absent, tmp_path, RESTARTED="1") == HELD


def test_without_an_agent_it_has_grid_engine_hold_a_job_that_may_not_be_put_off(
    absent: Door, tmp_path: Path
) -> None:
    commands(tmp_path, "qmod", "qalter")
    script = tmp_path / "qalter"
    script.write_text(f"{script.read_text()}[ $1 != -a ]\n")
    assert given_back(absent, tmp_path)[1:] == HELD


def test_without_an_agent_a_job_that_is_deleted_meanwhile_stays_deleted(
    absent: Door, tmp_path: Path
) -> None:
    called = commands(tmp_path, "qmod", "qalter")
    spool = tmp_path / "spool"
    process = absent.start(*WORDS, variables=gridengine(spool, tmp_path))
    guard = guard_of(process)
    process.kill()
    wait_for(lambda: state(process.pid) == "Z")
    with (spool / "trace").open("a") as trace:
        trace.write("11/17/2026 06:00:09 [1000:7]: mapped signal TSTP to signal KILL\n")
    assert absent.finish(process)[0] == -signal.SIGKILL
    wait_for(lambda: not Path(f"/proc/{guard}").exists())
    assert not called.exists()


@pytest.mark.parametrize(
    "why",
    ["mapped signal TSTP to signal KILL", "queued signal TTOU"],
)
def test_a_job_that_grid_engine_has_killed_is_not_kept(
    door: Door, tmp_path: Path, why: str
) -> None:
    spool = tmp_path / "spool"
    process = door.start(*WORDS, variables=gridengine(spool, tmp_path))
    guard_of(process)
    door.accept().answer(b"B")
    with (spool / "trace").open("a") as trace:
        trace.write(f"11/17/2026 06:00:09 [1000:7]: {why}\n")
    process.kill()
    assert door.finish(process)[0] == -signal.SIGKILL
    assert not door.is_asked()


@pytest.mark.parametrize("how", ["heard of", "ended long ago"])
def test_a_script_that_grid_engine_has_killed_ends_after_its_tasks(
    door: Door, tmp_path: Path, how: str
) -> None:
    """Else its daemon would keep the job in mind, and never begin it again."""
    spool = tmp_path / "spool"
    process = door.start(*WORDS, variables=gridengine(spool, tmp_path))
    guard = guard_of(process)
    door.accept().answer(b"B")
    task = spool / "1.here"
    task.mkdir()
    with (spool / "trace").open("a") as trace:
        trace.write("11/17/2026 06:00:09 [1000:7]: mapped signal TSTP to signal KILL\n")
    process.kill()
    wait_for(lambda: is_held(process.pid, guard))
    time.sleep(0.5)
    assert is_held(process.pid, guard)
    if how == "heard of":
        task.rmdir()
    else:
        status = task / "exit_status"
        status.write_text("0\n")
        os.utime(status, (0, time.time() - 121))
    assert door.finish(process)[0] == -signal.SIGKILL
    assert not door.is_asked()
