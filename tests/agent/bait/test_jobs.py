"""Jobs of ordinary users, through a real starter and a real agent into real machines."""

from __future__ import annotations

import fcntl
import grp
import json
import os
import pty
import signal
import struct
import subprocess
import tempfile
import termios
import time
from pathlib import Path

import pytest

from encamp.agent.bait.records import found
from encamp.model.batch_record import BatchRecord
from encamp.model.errors import Code
from tests.agent.bait.hosting import OPEN_FILES, UMASK, Host, Person, wait_for

pytestmark = pytest.mark.site


def test_job_opens_its_streams_by_their_names(host: Host, alice: Person) -> None:
    words = "cat /dev/stdin; echo out >/dev/stdout; echo err >/dev/stderr; echo 1 >/proc/self/fd/1"
    with tempfile.TemporaryFile() as given:
        given.write(b"in\n")
        given.seek(0)
        done = host.run(alice, "/bin/sh", "-c", words, stdin=given)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"in\nout\n1\n", b"err\n")


def test_job_runs_in_a_machine_as_its_user(host: Host, alice: Person) -> None:
    done = host.run(alice, "/bin/sh", "-c", "id -u; id -g; echo $ENCAMP_ENVIRONMENT; uname -n")
    assert done.returncode == 0, (done, host.said())
    uid, gid, environment, name = done.stdout.decode().split()
    assert (int(uid), int(gid), environment) == (alice.uid, alice.gid, "mini")
    assert name != os.uname().nodename
    assert done.stderr == b""


def test_words_and_directories_need_not_be_text(host: Host, alice: Person) -> None:
    below, elsewhere = alice.directory / "\udcff", host.root / "\udcfe"
    for place in (below, elsewhere):
        place.mkdir()
        os.chown(place, alice.uid, alice.gid)
    words = ("/bin/sh", "-c", 'pwd; echo "$1"', "sh", "\udcfd")
    done = host.run(alice, *words, directory=below)
    assert (done.returncode, done.stdout) == (0, os.fsencode(f"{below}\n\udcfd\n")), done
    # One that no share shows cannot be shown.
    done = host.run(alice, *words, directory=elsewhere)
    assert (done.returncode, done.stdout) == (0, b"/\n\xfd\n"), done
    assert b"\\xfe cannot be entered (No such file or directory): it begins in '/'" in done.stderr


def test_directory_that_the_machines_system_does_not_have_is_told(
    host: Host, alice: Person
) -> None:
    done = host.run(alice, "/bin/pwd", directory=Path("/usr/share/doc"))
    assert (done.returncode, done.stdout) == (0, b"/\n")
    assert b"/usr/share/doc cannot be entered (No such file or directory)" in done.stderr
    done = host.run(alice, "/bin/pwd", directory=Path("/usr/bin"))
    assert (done.stdout, done.stderr) == (b"/usr/bin\n", b"")


def test_job_finds_around_it_what_its_batch_system_gave_it(host: Host, alice: Person) -> None:
    script = """
        pwd; umask; ulimit -Sn; ulimit -Hn; id -G; echo "$GREETING"; echo "$1:$2"
        echo written >from-inside
    """
    place = alice.directory / "work here"
    place.mkdir()
    os.chown(place, alice.uid, alice.gid)
    done = host.run(
        alice,
        *("/bin/sh", "-c", script, "sh", "first word", ""),
        variables={"GREETING": "two\nlines"},
        groups=(alice.gid, 20123),
        directory=place,
    )
    assert done.stdout.decode().splitlines() == [
        str(place),
        f"{UMASK:04o}",
        *map(str, OPEN_FILES),
        f"{alice.gid} 20123",
        "two",
        "lines",
        "first word:",
    ]
    made = place / "from-inside"
    assert made.read_text() == "written\n"
    assert (made.stat().st_uid, made.stat().st_mode & 0o777) == (alice.uid, 0o666 & ~UMASK)


def test_groups_of_a_jobs_user_have_their_names_in_its_machine(
    host: Host, alice: Person, bob: Person
) -> None:
    groups = (alice.gid, bob.gid, 20123)
    done = host.run(alice, "/bin/sh", "-c", "id", groups=groups)
    named = [grp.getgrgid(gid).gr_name for gid in (alice.gid, bob.gid)]
    assert done.stdout.decode().split()[-1] == (
        f"groups={alice.gid}({named[0]}),{bob.gid}({named[1]}),20123"
    )


@pytest.mark.parametrize("code", [0, 1, 77, 255])
def test_job_ends_with_its_own_exit_code(host: Host, alice: Person, code: int) -> None:
    assert host.run(alice, "/bin/sh", "-c", f"exit {code}").returncode == code


def test_job_that_kills_itself_ends_by_that_signal(host: Host, alice: Person) -> None:
    assert host.run(alice, "/bin/sh", "-c", "kill -USR1 $$").returncode == -signal.SIGUSR1


def test_job_that_uses_up_its_machines_memory_is_told_so(host: Host, alice: Person) -> None:
    script = "x=aaaaaaaaaa; while :; do x=$x$x; done"
    done = host.run(alice, "/bin/sh", "-c", script)
    assert done.returncode == -signal.SIGKILL
    assert b"encamp: The memory of the machine ran out" in done.stderr


def test_command_that_is_not_there_ends_as_a_shell_would_say(host: Host, alice: Person) -> None:
    done = host.run(alice, "/no/such/program")
    assert done.returncode == 127
    assert b"/no/such/program" in done.stderr


def test_signal_reaches_the_job_in_its_machine(host: Host, alice: Person) -> None:
    job = host.start(
        alice, "/bin/sh", "-c", "trap 'echo caught; exit 9' USR1; echo ready; while :; do :; done"
    )
    assert job.process.stdout is not None
    assert job.process.stdout.readline() == b"ready\n"
    job.signal(signal.SIGUSR1)
    done = job.end()
    assert (done.stdout, done.returncode) == (b"caught\n", 9)


def test_script_runs_by_its_own_first_line(host: Host, alice: Person) -> None:
    script = alice.directory / "job.sh"
    script.write_text(f'#!{host.starter} pbs:mini\n#!/bin/sh\necho "$0 $*"\ncat\nexit 3\n')
    script.chmod(0o755)
    done = host.run(
        alice, program=(script, "a", "b c"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert done.returncode == 3, done
    assert done.stdout.decode().split("\n")[0].endswith("/job.sh a b c")


def test_script_with_line_ends_of_another_system_is_told_so(host: Host, alice: Person) -> None:
    script = alice.directory / "foreign.sh"
    script.write_bytes(f"#!{host.starter} pbs:mini\n#!/bin/sh\r\necho never\r\n".encode())
    script.chmod(0o755)
    done = host.run(alice, program=(script,))
    assert (done.returncode, done.stdout) == (127, b"")
    assert b"ends with a carriage return" in done.stderr


def test_input_comes_from_a_pipe(host: Host, alice: Person) -> None:
    job = host.start(alice, "/bin/cat", stdin=subprocess.PIPE)
    data = os.urandom(300_000)
    out, _ = job.process.communicate(data, timeout=90)
    assert out == data


def test_output_is_added_to_a_file_where_it_was_left(host: Host, alice: Person) -> None:
    out, both = alice.directory / "out", alice.directory / "both"
    out.write_text("before\n")
    with out.open("ab") as file, both.open("wb") as together:
        together.write(b"header\n")
        together.flush()
        host.run(alice, "/bin/echo", "after", stdout=file, stderr=together)
        with out.open("ab") as other:
            other.write(b"other\n")
        host.run(
            alice,
            *("/bin/sh", "-c", "for i in 1 2 3 4 5; do echo $i; echo $i >&2; done"),
            stdout=together,
            stderr=together,
        )
        together.write(b"footer\n")
    assert out.read_text() == "before\nafter\nother\n"
    expected = "".join(f"{i}\n{i}\n" for i in range(1, 6))
    assert both.read_text() == f"header\n{expected}footer\n"


def test_job_whose_output_cannot_be_written_is_no_success(host: Host, alice: Person) -> None:
    with open("/dev/full", "wb") as full:
        done = host.run(alice, "/bin/echo", "lost", stdout=full)
    assert (done.returncode, b"No space left" in done.stderr) == (Code.DISK_FULL.value, True)

    def ended() -> BatchRecord | None:
        last = found(host.home, uid=alice.uid, last=1)
        return last[0] if last and last[0].ended else None

    record = wait_for("its record", ended)
    assert (record.exit_code, "No space left" in record.reason) == (Code.DISK_FULL.value, True)


def test_job_at_a_terminal_has_one_in_its_machine(host: Host, alice: Person) -> None:
    ours, its = pty.openpty()
    try:
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 99, 0, 0))
        job = host.start(
            alice,
            *("/bin/sh", "-c", "tty; stty size; read line; echo got $line; exit 8"),
            stdin=its,
            stdout=its,
            stderr=its,
        )
        said = b""
        while b"33 99" not in said:
            said += os.read(ours, 4096)
        os.write(ours, b"a word\r")
        while b"got a word" not in said:
            said += os.read(ours, 4096)
        assert job.end().returncode == 8
    finally:
        os.close(ours)
        os.close(its)
    # What was typed is shown once: by the terminal in the machine.
    assert (said.count(b"a word"), b"/dev/pts/" in said) == (2, True)


@pytest.mark.parametrize("place", ["/tmp/17.1.main", "/scratch/of/17"])
def test_temporary_directory_of_the_job_is_made_in_the_machine(
    host: Host, alice: Person, place: str
) -> None:
    done = host.run(
        alice,
        "/bin/sh",
        "-c",
        "echo >$TMPDIR/x; stat -c '%u %a' $TMPDIR",
        variables={"TMPDIR": place},
    )
    assert done.stdout.decode().split() == [str(alice.uid), "700"], done
    assert not Path(place).exists()


def test_directory_of_the_machines_system_is_not_made_the_jobs(host: Host, alice: Person) -> None:
    named = "/etc/cron.d/x"
    script = f"echo $TMPDIR $TMP; ls -d {named} || exit 3"
    done = host.run(alice, "/bin/sh", "-c", script, variables={"TMPDIR": named, "TMP": named})
    assert done.returncode == 3
    assert done.stdout == b"/tmp /tmp\n"


def test_job_stands_still_while_its_starter_is_stopped(host: Host, alice: Person) -> None:
    """As a batch system suspends it, and lets it go on."""
    beats = alice.directory / "beats"
    job = host.start(
        alice, "/bin/sh", "-c", f"while [ ! -e {beats}.end ]; do echo >>{beats}; sleep 0.05; done"
    )
    host.wait_for("a beat", beats.exists)
    job.signal(signal.SIGSTOP)
    host.wait_for("a paused machine", lambda: _states(host) == ["paused"])

    def is_still() -> bool:
        before = beats.stat().st_size
        # Its processors stand still, whatever the clock does.
        time.sleep(1.0)
        return beats.stat().st_size == before

    # What it is to be is written down before it is done.
    host.wait_for("a job that stands still", is_still)
    seen = beats.stat().st_size
    job.signal(signal.SIGCONT)
    host.wait_for("another beat", lambda: beats.stat().st_size > seen)
    host.wait_for("a machine that goes on", lambda: _states(host) == ["running"])
    Path(f"{beats}.end").touch()
    assert job.end().returncode == 0


def test_job_of_a_stopped_starter_does_not_begin(host: Host, alice: Person) -> None:
    ran, go = alice.directory / "ran", host.root / "people" / "go"
    job = host.start(alice, "/bin/touch", ran, environment="patient")
    host.wait_for("a machine", lambda: _states(host) == ["starting"])
    job.signal(signal.SIGSTOP)
    go.touch()
    try:
        host.wait_for("a machine that is ready", lambda: _states(host) == ["running"])
        time.sleep(1.0)
        assert not ran.exists()
        job.signal(signal.SIGCONT)
        assert (job.end().returncode, ran.exists()) == (0, True)
    finally:
        go.unlink()


def test_job_of_roots_runs_in_a_machine_too(host: Host) -> None:
    directory = host.root / "roots"
    directory.mkdir()
    root = Person("root", 0, 0, directory)
    done = host.run(root, "/bin/sh", "-c", "id -u; echo $ENCAMP_ENVIRONMENT; echo >here; pwd")
    assert done.stdout.decode().split() == ["0", "mini", str(directory)], done
    assert (directory / "here").stat().st_uid == 0


def test_machine_is_gone_when_its_starter_is_killed(host: Host, alice: Person) -> None:
    job = host.start(alice, "/bin/sh", "-c", "echo ready; sleep 600")
    assert job.process.stdout is not None
    assert job.process.stdout.readline() == b"ready\n"
    job.signal(signal.SIGKILL)
    host.nothing_left()
    assert job.end().returncode == -signal.SIGKILL


def test_job_without_environment_is_left_alone(host: Host, alice: Person) -> None:
    done = host.run(alice, "/bin/uname", "-n", environment="")
    assert done.stdout.decode().strip() == os.uname().nodename


def test_machine_of_an_environment_with_reuse_serves_the_next_job(
    host: Host, alice: Person
) -> None:
    """With its files, but nothing goes on there."""
    script = "echo $ENCAMP_MACHINE; cat /tmp/left 2>/dev/null; cat /proc/[0-9]*/comm | grep sleep"
    words = ("/bin/sh", "-c", f"{script}; echo was >/tmp/left; setsid sleep 600 >/dev/null 2>&1 &")
    first = host.run(alice, *words, environment="again").stdout.decode().split()
    second = host.run(alice, *words, environment="again").stdout.decode().split()
    assert (len(first), second) == (1, [first[0], "was"])
    (machine,) = host.machines()
    os.kill(machine, signal.SIGKILL)


def _states(host: Host) -> list[str]:
    found = host.home.owners.glob("*/machines/*/machine.json")
    return [json.loads(path.read_bytes())["state"] for path in found]
