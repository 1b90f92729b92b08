"""Commands that a job calls from its machine: the starter runs them where the job is."""

from __future__ import annotations

import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from encamp.agent.bait import frames
from tests.batch.starter.double import PATIENCE, Door, Process, Visit

SHOW = 'echo "$0 $1 $V $(pwd) $PPID"; cat; echo oops >&2; exit 7'


class Caller:
    """Whoever carries a job out, for which a starter waits."""

    def __init__(self, door: Door, variables: dict[str, str] | None = None) -> None:
        self.door = door
        self.process: Process = door.start("slurm:mini", "--", "true", cwd="/", variables=variables)
        self.visit: Visit = door.accept()
        self.visit.answer(b"B")
        self.files: list[int] = []

    def call(
        self, number: int, *words: str, files: int = 4, directory: str = "/usr", said: bytes = b""
    ) -> tuple[int, int, int]:
        """Our ends of its input and outputs."""
        arguments = [os.fsencode(word) for word in (words[0], *words[1:])]
        said = said or frames.call_words(words[0], arguments, {"V": "v"}, os.fsencode(directory))
        paper = os.memfd_create("words")
        os.write(paper, said)
        pipes = [os.pipe() for _ in range(3)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1], paper]
        ours = pipes[0][1], pipes[1][0], pipes[2][0]
        socket.send_fds(self.visit._connection, [frames.call(number)], theirs[:files])
        for file in theirs:
            os.close(file)
        self.files += ours
        return ours

    def close(self, file: int) -> None:
        self.files.remove(file)
        os.close(file)

    def signal(self, number: int, which: int) -> None:
        self.visit.say(frames.call_signal(number, which))

    def ended(self) -> tuple[int, int, int]:
        kind, payload = self.visit.frame()
        assert kind == b"X"
        return struct.unpack("<IBB", payload)

    def read(self, file: int) -> str:
        text = b""
        while data := os.read(file, 4096):
            text += data
        return text.decode()


@pytest.fixture
def caller(door: Door) -> Iterator[Caller]:
    caller = Caller(door)
    yield caller
    for file in caller.files:
        os.close(file)


def eventually(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_command_runs_below_the_starter_with_what_it_was_given(caller: Caller) -> None:
    input, output, error = caller.call(5, "/bin/sh", "-c", SHOW, "zero", "one")
    os.write(input, b"read\n")
    caller.close(input)
    assert caller.read(output) == f"zero one v /usr {caller.process.pid}\nread\n"
    assert caller.read(error) == "oops\n"
    assert caller.ended() == (5, 0, 7)


def test_what_may_begin_tasks_of_grid_engine_outlives_its_starter_also_if_it_stands_still(
    door: Door, tmp_path: Path
) -> None:
    """Were it to end, Grid Engine would end the job for good."""
    caller = Caller(door, {"SGE_JOB_SPOOL_DIR": str(tmp_path)})
    _, output, _ = caller.call(1, "/bin/sh", "-c", "echo $$; exec sleep 600")
    task = psutil.Process(int(os.read(output, 100)))
    task.suspend()
    eventually(lambda: task.status() == psutil.STATUS_STOPPED)
    caller.process.kill()
    caller.process.wait()
    time.sleep(0.1)
    assert task.status() == psutil.STATUS_STOPPED
    task.kill()
    for file in caller.files:
        os.close(file)


def test_one_whose_directory_is_only_inside_begins_where_the_job_did(caller: Caller) -> None:
    _, output, _ = caller.call(1, "/bin/pwd", directory="/not/there")
    assert caller.read(output) == "/\n"
    assert caller.ended() == (1, 0, 0)


def test_signals_reach_it_and_nobody_else(caller: Caller) -> None:
    counting = "trap 'exit 3' USR1; echo $$; while :; do sleep 0.05; done"
    _, first, _ = caller.call(1, "/bin/sh", "-c", counting)
    caller.call(2, "/bin/sleep", "600")
    assert os.read(first, 100).strip().isdigit()
    caller.signal(1, signal.SIGUSR1)
    caller.signal(9, signal.SIGKILL)  # There is no such.
    assert caller.ended() == (1, 0, 3)
    caller.signal(2, signal.SIGTERM)
    assert caller.ended() == (2, 1, signal.SIGTERM)
    assert caller.process.poll() is None


def test_one_that_cannot_be_run_says_so(caller: Caller) -> None:
    _, _, error = caller.call(1, "/no/such/program")
    assert "/no/such/program cannot be run: No such file" in caller.read(error)
    assert caller.ended() == (1, 0, 127)


@pytest.mark.parametrize(
    "said",
    [b"x", b"\0" * 50, b"a\5\0\0\0abcde", b"x\3\0\0\0/x\0", b"a\xff\xff\xff\xffx", b"q\1\0\0\0\0"],
)
def test_words_that_make_no_sense_are_not_run(caller: Caller, said: bytes) -> None:
    caller.call(1, "unused", said=said)
    number, how, code = caller.ended()
    assert (number, how) == (1, 0)
    assert code in (126, 127)


@pytest.mark.parametrize("files", [1, 3])
def test_one_without_its_files_is_not_begun(caller: Caller, files: int) -> None:
    caller.call(1, "/bin/true", files=files)
    assert caller.ended()[:2] == (1, 2)
    caller.visit.say(frames.call(2))
    assert caller.ended()[:2] == (2, 2)


def test_there_are_not_more_than_there_may_be(caller: Caller) -> None:
    for number in range(64):
        caller.call(number, "/bin/sleep", "600")
    caller.call(64, "/bin/sleep", "600")
    assert caller.ended()[:2] == (64, 2)
    caller.signal(3, signal.SIGKILL)
    assert caller.ended() == (3, 1, 9)
    _, output, _ = caller.call(65, "/bin/echo", "again")
    assert caller.read(output) == "again\n"


@pytest.mark.parametrize("end", ["ends", "is killed", "is left"])
def test_nothing_of_them_is_left_when_the_job(caller: Caller, end: str) -> None:
    _, output, _ = caller.call(1, "/bin/sh", "-c", "trap '' TERM HUP; echo $$; exec sleep 600")
    pid = int(os.read(output, 100))
    if end == "ends":
        caller.visit.ended(4)
        assert caller.door.finish(caller.process)[0] == 4
    elif end == "is killed":
        caller.process.kill()
    else:
        caller.visit._connection.close()
    eventually(lambda: is_gone(pid))
