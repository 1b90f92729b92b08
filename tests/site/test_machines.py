"""Machines by hand: started, worked in, moved and ended."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from encamp.home import Home
from tests.cli.driving import Start, on_terminal, starter
from tests.conftest import Encamp, machine_processes

pytestmark = pytest.mark.site

PORTS = 8


@pytest.fixture
def start(encamp_environment: dict[str, str], tmp_path: Path, nothing_left: None) -> Start:
    return starter(encamp_environment, tmp_path)


@pytest.fixture
def work(encamp: Encamp) -> Iterator[str]:
    """The name of a running machine."""
    assert encamp("start", "--name", "work").stdout == b"work\n"
    yield "work"
    encamp("kill-all")


def state_of(encamp: Encamp, name: str) -> str:
    return str(json.loads(encamp("show", "--json", name).stdout)["state"])


def test_machine_is_listed_and_shown_under_name_and_id(encamp: Encamp, work: str) -> None:
    (record,) = json.loads(encamp("ps", "--json").stdout)
    assert (record["name"], record["state"], record["owner"]) == (work, "running", os.geteuid())
    assert record["environment"] == "mini"
    assert record["size"] == {"cpus": 1, "memory": 128 << 20, "disk": 0}
    table = encamp("ps").stdout.decode()
    for word in (work, record["id"][:8], "mini", "running", "its guest answered"):
        assert word in table
    shown = encamp("show", record["id"][:6]).stdout.decode()
    for word in (work, record["id"], record["template"], record["image"], "guest waited for"):
        assert word in shown
    (process,) = machine_processes(Home(Path(record_home(shown))))
    assert f" {process} " in shown


def record_home(shown: str) -> str:
    """The home that `encamp show` says a machine's directory is in."""
    (line,) = [line for line in shown.splitlines() if line.startswith("directory")]
    return str(Path(line.split()[1]).parent.parent)


def test_second_machine_of_a_name_is_refused(encamp: Encamp, work: str) -> None:
    for words in (("start", "--name", work), ("run", "--name", work, "--", "true")):
        done = encamp(*words, check=False)
        assert done.returncode == 64
        assert b"named 'work' already" in done.stderr
    assert len(json.loads(encamp("ps", "--json").stdout)) == 1


def test_commands_run_in_it_one_after_another(encamp: Encamp, work: str) -> None:
    assert encamp("exec", work, "--", "sh", "-c", "cat > /tmp/x", input=b"kept").returncode == 0
    done = encamp("exec", work, "--", "sh", "-c", "cat /tmp/x; echo e >&2; exit 9", check=False)
    assert (done.stdout, done.stderr, done.returncode) == (b"kept", b"e\n", 9)
    words = ("--env-var", "A=b", "-w", "/tmp", work, "sh", "-c", "echo $A $PWD; hostname")
    assert encamp("exec", *words).stdout == b"b /tmp\nwork\n"
    late = encamp("exec", "--timeout", "1", work, "--", "sleep", "100", check=False)
    assert late.returncode == 124
    assert encamp("exec", work, "--", "nonesuch", check=False).returncode == 127
    # What one leaves behind goes on; what it had in the foreground ended with it.
    encamp("exec", work, "--", "sh", "-c", "sleep 1234 </dev/null >/dev/null 2>&1 &")
    assert encamp("exec", work, "--", "pidof", "sleep").stdout.split() != []


def test_eight_commands_run_at_once_and_a_ninth_is_refused(
    encamp: Encamp, start: Start, work: str
) -> None:
    with ExitStack() as all_of_them:
        running = []
        for number in range(PORTS):
            words = ("exec", work, "--", "sh", "-c", f"echo {number}; cat")
            running.append(all_of_them.enter_context(start(*words)))
        for number, one in enumerate(running):
            assert one.line() == b"%d\n" % number
        ninth = encamp("exec", work, "--", "true", check=False)
        assert ninth.returncode == 75
        assert b"All 8 channels of the machine are in use" in ninth.stderr
        # A machine that is so busy can still be paused and resumed.
        encamp("pause", work)
        encamp("resume", work)
        for number, one in enumerate(running):
            one.type(b"and %d\n" % number)
            assert one.line() == b"and %d\n" % number
            assert one.ends_with() == 0
    assert encamp("exec", work, "--", "echo", "again").stdout == b"again\n"


def test_shell_takes_a_script_or_a_terminal(
    encamp: Encamp, encamp_environment: dict[str, str], work: str
) -> None:
    done = encamp("shell", work, input=b"echo from the shell; exit 4\n", check=False)
    assert (done.stdout, done.returncode) == (b"from the shell\n", 4)
    with on_terminal(encamp_environment, "shell", work, rows=30, columns=90) as terminal:
        terminal.type(b"stty size; echo $((6 * 7))\r")
        terminal.wait_for(b"30 90\r\n42\r\n")
        terminal.type(b"exit 6\r")
        assert terminal.process.wait() == 6


def test_files_are_copied_in_and_out(encamp: Encamp, tmp_path: Path, work: str) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "a:b").write_text("colons\n")
    encamp("copy", "tree", f"{work}:/tmp")
    assert encamp("exec", work, "--", "cat", "/tmp/tree/a:b").stdout == b"colons\n"
    encamp("copy", f"{work}:/tmp/tree/a\\:*", "back/")
    assert (tmp_path / "back" / "a:b").read_text() == "colons\n"
    encamp("copy", "tree/a\\:b", f"{work}:")
    assert encamp("exec", work, "--", "sh", "-c", "cat ~/a:b").stdout == b"colons\n"
    wrong: dict[tuple[str, str], int] = {
        ("missing", f"{work}:/tmp"): 66,
        (f"{work}:/missing", "."): 80,
        (f"{work}:", "."): 64,
        ("tree", "back"): 64,
        (f"{work}:a", f"{work}:b"): 64,
        ("tree", "nobody:/tmp"): 68,
        ("tree", f"{work}:/proc/x/y"): 80,
        (f"{work}:/tmp/tree", "tree/a\\:b/x"): 80,
    }
    for (source, target), code in wrong.items():
        done = encamp("copy", source, target, check=False)
        assert done.returncode == code, (source, target, done.stderr)
        assert done.stderr.startswith((b"encamp: ", b"  | "))


def test_console_shows_what_the_guest_printed(encamp: Encamp, work: str) -> None:
    encamp("exec", work, "--", "sh", "-c", "echo seen on the console > /dev/console")
    printed = encamp("console", work).stdout
    assert b"encamp-guest: ready" in printed
    assert b"seen on the console" in printed
    encamp("stop", work)
    assert b"seen on the console" in encamp("console", work).stdout


def test_paused_machine_stands_still_and_knows_the_time_afterwards(
    encamp: Encamp, work: str
) -> None:
    tick = "while :; do echo tick >> /tmp/ticks; sleep 0.05; done </dev/null >/dev/null 2>&1 &"
    begun = "until test -s /tmp/ticks; do sleep 0.05; done"
    encamp("exec", work, "--", "sh", "-c", f"{tick} {begun}")
    encamp("pause", work)
    assert state_of(encamp, work) == "paused"
    refused = encamp("exec", work, "--", "true", check=False)
    assert refused.returncode == 79
    time.sleep(3)
    encamp("resume", work)
    before = int(time.time())
    script = "date +%s; wc -l < /tmp/ticks; sleep 0.5; wc -l < /tmp/ticks"
    clock, ticks, more = encamp("exec", work, "--", "sh", "-c", script).stdout.split()
    assert before - 1 <= int(clock) <= int(time.time()) + 1
    assert int(more) > int(ticks)


def test_stopped_and_killed_machines_leave_a_record_until_it_is_removed(
    encamp: Encamp, work: str, site_home: Home
) -> None:
    encamp("stop", work)
    encamp("start", "--name", "other")
    encamp("kill", "other")
    assert machine_processes(site_home) == []
    records = {record["name"]: record for record in json.loads(encamp("ps", "--json").stdout)}
    assert {name: (r["state"], r["reason"]) for name, r in records.items()} == {
        "work": ("stopped", "shut down on request"),
        "other": ("stopped", "killed on request"),
    }
    assert encamp("rm", work, "other").stdout == b"work\nother\n"
    assert json.loads(encamp("ps", "--json").stdout) == []


def test_machine_that_ends_by_itself_is_recorded_as_failed(encamp: Encamp, work: str) -> None:
    encamp("exec", work, "--", "sh", "-c", "echo b > /proc/sysrq-trigger; sleep 100", check=False)
    record = json.loads(encamp("show", "--json", work).stdout)
    assert record["state"] == "failed"
    assert "its process ended" in record["reason"]
    encamp("rm", work)


@pytest.mark.parametrize(
    ("moves", "state", "wrong", "possible"),
    [
        ((), "running", ("resume", "restore", "rm"), "exec, pause, suspend, save, stop, kill"),
        (("pause",), "paused", ("pause", "restore", "stop", "rm"), "resume, suspend, kill"),
        (("suspend",), "suspended", ("pause", "resume", "suspend", "stop"), "restore, kill, rm"),
        (("kill",), "stopped", ("pause", "resume", "suspend", "restore", "stop", "kill"), "rm"),
    ],
)
def test_wrong_move_is_refused_and_changes_nothing(
    encamp: Encamp,
    work: str,
    moves: tuple[str, ...],
    state: str,
    wrong: tuple[str, ...],
    possible: str,
) -> None:
    for move in moves:
        encamp(move, work)
    for move in wrong:
        done = encamp(move, work, check=False)
        assert done.returncode == 79, move
        assert f"it is {state} (" in done.stderr.decode()
        assert f"Possible now: {possible}." in done.stderr.decode()
    assert state_of(encamp, work) == state


def test_running_machine_is_removed_only_by_force(
    encamp: Encamp, work: str, site_home: Home
) -> None:
    assert encamp("rm", work, check=False).returncode == 79
    assert encamp("rm", "--force", work).stdout == b"work\n"
    assert machine_processes(site_home) == []
    gone = encamp("rm", "--force", work, check=False)
    assert gone.returncode == 68
    assert b"You have no machine 'work'" in gone.stderr


def test_moves_go_on_after_one_that_fails(encamp: Encamp, work: str) -> None:
    done = encamp("pause", "nobody", work, "nobody either", check=False)
    assert (done.stdout, done.returncode) == (b"work\n", 68)
    assert b"'nobody'" in done.stderr
    assert b"'nobody either'" in done.stderr


def test_kill_all_ends_machines_in_every_state(
    encamp: Encamp, start: Start, work: str, site_home: Home
) -> None:
    names = {"work", "still", "asleep", "over"}
    for name, move in (("still", "pause"), ("asleep", "suspend"), ("over", "kill")):
        encamp("start", "--name", name)
        encamp(move, name)
    with start("run", "--name", "job", "--", "sh", "-c", "echo ready; sleep 1000") as running:
        assert running.line() == b"ready\n"
        killed = encamp("kill-all").stdout.decode().split()
        assert set(killed) == {*names, "job"}
        assert running.process.wait() == 72
    assert machine_processes(site_home) == []
    assert list(site_home.machines.iterdir()) == []
