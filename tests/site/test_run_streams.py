"""The streams, signals and terminal of a command in a machine are those of `encamp run`."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import threading
from pathlib import Path

import pytest

from encamp.home import Home
from tests.cli.driving import Running, Start, on_terminal, starter
from tests.conftest import Encamp, left_behind

pytestmark = pytest.mark.site

MIB = 1024 * 1024
EVERY_BYTE = bytes(range(256))

WAITS = "trap 'echo caught; exit 5' {signal}; echo ready; while :; do sleep 0.1; done"
STUBBORN = "trap 'echo caught' INT TERM; echo ready; while :; do sleep 0.1; done"


@pytest.fixture
def start(encamp_environment: dict[str, str], tmp_path: Path, nothing_left: None) -> Start:
    return starter(encamp_environment, tmp_path)


def test_every_byte_passes_unchanged_and_the_two_outputs_stay_apart(encamp: Encamp) -> None:
    sent = EVERY_BYTE * 1021 + b"no newline at the end"
    script = "cat > all; cat all; printf 'to the other one' >&2; cat all >&2"
    done = encamp("run", "--", "sh", "-c", script, input=sent)
    assert done.stdout == sent
    assert done.stderr == b"to the other one" + sent


def test_output_comes_while_the_command_runs_and_input_goes_in_meanwhile(start: Start) -> None:
    script = "echo first; read answer; echo got $answer; cat; echo the end was seen"
    with start("run", "--", "sh", "-c", script) as running:
        assert running.line() == b"first\n"
        running.type(b"second\n")
        assert running.line() == b"got second\n"
        running.stdin.close()
        assert running.line() == b"the end was seen\n"
        assert running.process.wait() == 0


def test_input_that_nobody_reads_holds_nothing_up(encamp: Encamp, start: Start) -> None:
    done = encamp("run", "--", "sh", "-c", "exec <&-; echo done", input=bytes(8 * MIB))
    assert done.stdout == b"done\n"
    with start("run", "--", "echo", "done") as running:
        # Its input is still open.
        assert running.process.wait() == 0


def test_large_streams_arrive_whole_in_bounded_memory(start: Start) -> None:
    piece = os.urandom(MIB)
    count = 64
    received = hashlib.sha256()
    with start("run", "--", "cat") as running:
        _through(running, [piece], received)
        before = high_water(running.process.pid)
        _through(running, [piece] * (count - 1), received)
        after = high_water(running.process.pid)
        assert running.ends_with() == 0
    assert received.hexdigest() == hashlib.sha256(piece * count).hexdigest()
    assert after - before < 16 * MIB


def _through(running: Running, pieces: list[bytes], received: hashlib._Hash) -> None:
    def send() -> None:
        for piece in pieces:
            running.type(piece)

    sending = threading.Thread(target=send)
    sending.start()
    for piece in pieces:
        received.update(running.stdout.read(len(piece)))
    sending.join()


def high_water(pid: int) -> int:
    """The most memory a process has used so far."""
    match = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024


def test_command_ends_when_nobody_reads_its_output_any_more(start: Start) -> None:
    with start("run", "--", "yes") as running:
        assert running.line() == b"y\n"
        running.stdout.close()
        assert running.process.wait() == 128 + signal.SIGPIPE


def test_process_left_behind_with_the_output_open_holds_nothing_up(encamp: Encamp) -> None:
    done = encamp("run", "--", "sh", "-c", "sleep 1000 & echo out; echo err >&2")
    assert (done.stdout, done.stderr) == (b"out\n", b"err\n")


@pytest.mark.parametrize(
    ("end", "code"),
    [("exit 0", 0), ("exit 255", 255), ("kill -KILL $$", 137), ("kill -SEGV $$", 139)],
)
def test_exit_code_is_the_commands_or_128_and_its_signal(
    encamp: Encamp, end: str, code: int
) -> None:
    assert encamp("run", "--", "sh", "-c", end, check=False).returncode == code


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT"])
def test_signal_reaches_the_command(start: Start, name: str) -> None:
    with start("run", "--", "sh", "-c", WAITS.format(signal=name)) as running:
        assert running.line() == b"ready\n"
        running.process.send_signal(signal.Signals[f"SIG{name}"])
        assert running.line() == b"caught\n"
        assert running.process.wait() == 5


def test_command_that_does_not_catch_the_signal_ends_by_it(start: Start) -> None:
    with start("run", "--", "sh", "-c", "echo ready; exec sleep 1000") as running:
        assert running.line() == b"ready\n"
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait() == 128 + signal.SIGTERM


def test_second_signal_kills_the_machine(start: Start, site_home: Home) -> None:
    with start("run", "--", "sh", "-c", STUBBORN) as running:
        assert running.line() == b"ready\n"
        running.process.send_signal(signal.SIGINT)
        assert running.line() == b"caught\n"
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait() == 128 + signal.SIGINT
        assert left_behind(site_home) == []


def test_time_limit_asks_the_command_to_end(encamp: Encamp) -> None:
    script = "trap 'echo asked; exit 0' TERM; sleep 1000 & wait"
    done = encamp("run", "--timeout", "10", "--", "sh", "-c", script, check=False)
    assert done.returncode == 124
    assert done.stdout == b"asked\n"
    assert b"time limit of 10 seconds" in done.stderr


def test_time_limit_ends_a_command_that_does_not_listen(encamp: Encamp) -> None:
    done = encamp("run", "--timeout", "0.5", "--", "sh", "-c", STUBBORN, check=False)
    assert done.returncode == 124


def test_terminal_is_a_real_one(encamp_environment: dict[str, str], nothing_left: None) -> None:
    script = (
        "trap 'stty size' WINCH; trap 'echo interrupted; exit 7' INT;"
        " tty; test -t 0 && test -t 1 && test -t 2 && stty size; while :; do sleep 0.1; done"
    )
    words = ("run", "-t", "--", "sh", "-c", script)
    with on_terminal(encamp_environment, *words, rows=33, columns=101) as terminal:
        terminal.wait_for(b"/dev/pts/")
        terminal.wait_for(b"33 101\r\n")
        terminal.resize(44, 122)
        terminal.wait_for(b"44 122\r\n")
        terminal.type(b"\x03")
        terminal.wait_for(b"interrupted\r\n")
        assert terminal.process.wait() == 7


def test_terminal_is_raw_only_while_the_command_has_it(
    encamp_environment: dict[str, str], nothing_left: None
) -> None:
    script = "echo shown; read line; echo got $line"
    words = ("run", "-t", "--", "sh", "-c", script)
    with on_terminal(encamp_environment, *words, rows=24, columns=80) as terminal:
        terminal.wait_for(b"shown\r\n")
        assert not terminal.echoes
        terminal.type(b"keys\r")
        # Echoed once, by the terminal inside.
        terminal.wait_for(b"keys\r\ngot keys\r\n")
        assert terminal.process.wait() == 0
        assert terminal.echoes
