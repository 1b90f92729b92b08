"""What every driver promises, on machines of each that works on any host. `kvm` is tried by
`make lab-kvm`."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from encamp.home import Home
from encamp.machines import usermode
from encamp.machines.standing import Standing
from encamp.model.errors import Code, EncampError
from tests.cli.driving import Start, starter
from tests.conftest import ENCAMP, Encamp, machine_processes

pytestmark = pytest.mark.site

MIB = 1 << 20
ISOLATIONS = ["namespace"] if usermode.own_kernel() is None else ["namespace", "kernel"]
"""What user-mode Linux has here: with Debian's kernel, or with one that `make kernel` has built."""


@pytest.fixture
def start(encamp_environment: dict[str, str], nothing_left: None, tmp_path: Path) -> Start:
    return starter(encamp_environment, tmp_path)


@pytest.fixture(params=["emulation", "usermode"])
def driver(request: pytest.FixtureRequest, encamp_environment: dict[str, str]) -> Iterator[str]:
    """The driver of all machines that the test makes."""
    encamp_environment["ENCAMP_DRIVER"] = request.param
    if request.param == "usermode":
        encamp_environment["ENCAMP_ISOLATION"] = ISOLATIONS[-1]
    yield str(request.param)
    del encamp_environment["ENCAMP_DRIVER"]
    encamp_environment.pop("ENCAMP_ISOLATION", None)


def test_machine_says_what_it_is_made_of(encamp: Encamp, driver: str) -> None:
    shown = {"emulation": "emulated", "usermode": "user-mode"}[driver]
    encamp("start", "--name", "made")
    record = json.loads(encamp("show", "--json", "made").stdout)
    isolation = "kernel" if driver == "emulation" else ISOLATIONS[-1]
    assert (record["driver"], record["isolation"]) == (driver, isolation)
    assert shown in encamp("ps").stdout.decode()
    timings = encamp("run", "--timings", "--", "true").stderr.decode()
    assert shown in timings
    encamp("rm", "--force", "made")


def test_machines_have_identities_of_their_own(encamp: Encamp, driver: str) -> None:
    script = "hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id"
    script += "; head -c 16 /dev/urandom | od -x"
    said = [
        encamp("run", "--name", f"m{number}", "--", "sh", "-c", script).stdout.splitlines()
        for number in range(2)
    ]
    names, ids, boots, chance, _ = (set(lines) for lines in zip(*said, strict=True))
    assert names == {b"m0", b"m1"}
    assert len(ids) == len(boots) == len(chance) == 2


def test_streams_are_whole_both_ways(encamp: Encamp, driver: str) -> None:
    data = os.urandom(MIB) * 32
    done = encamp("run", "--", "cat", input=data)
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(data).digest()


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("nosuch", 127)]
)
def test_exit_code_is_the_commands(encamp: Encamp, driver: str, script: str, code: int) -> None:
    assert encamp("run", "--", "sh", "-c", script, check=False).returncode == code


def test_signal_reaches_the_command_and_a_terminal_is_one(
    start: Start, encamp_environment: dict[str, str], driver: str
) -> None:
    trap = "trap 'echo told; exit 7' TERM; echo ready; while :; do sleep 0.1; done"
    with start("run", "--", "sh", "-c", trap) as running:
        assert running.line() == b"ready\n"
        running.process.send_signal(signal.SIGTERM)
        assert running.line() == b"told\n"
        assert running.ends_with() == 7
    words = ["script", "-qec", f"{ENCAMP} run -t -- tty", "/dev/null"]
    variables = {**os.environ, **encamp_environment}
    done = subprocess.run(words, env=variables, capture_output=True, timeout=60, check=True)
    assert b"/dev/pts/" in done.stdout


def test_share_keeps_locks_and_content_with_the_host(
    encamp: Encamp, start: Start, driver: str, debian12: str, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "file").write_text("of the host\n")
    encamp("start", "--name", "sharing", "-e", debian12, "--share", "shared:/s")
    hold = "exec 9>/s/lock; flock -n 9 && cat /s/file && read x"
    with start("exec", "sharing", "--", "sh", "-c", hold) as holding:
        assert holding.line() == b"of the host\n"
        with (shared / "lock").open("w") as file:
            with pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            holding.type(b"go\n")
            holding.ends_with()
            fcntl.flock(file, fcntl.LOCK_EX)
    encamp("exec", "sharing", "--", "sh", "-c", "dd if=/dev/zero of=/s/large bs=1M count=20")
    assert (shared / "large").read_bytes() == bytes(20 * MIB)
    encamp("rm", "--force", "sharing")


def test_files_are_staged_and_what_changed_is_saved(
    encamp: Encamp, driver: str, tmp_path: Path
) -> None:
    (tmp_path / "in").write_text("pear\napple\n")
    encamp("run", "--in", "in", "--out", "out", "--", "sh", "-c", "sort in > out")
    assert (tmp_path / "out").read_text() == "apple\npear\n"
    saving = ["--after", "save", "--save-as", f"changed-{driver}"]
    encamp("run", *saving, "--", "sh", "-c", "echo kept > /etc/kept")
    again = encamp("run", "--image", f"changed-{driver}", "--", "cat", "/etc/kept")
    assert again.stdout == b"kept\n"
    encamp("image", "rm", f"changed-{driver}")


def test_limits_of_memory_and_disk_are_told(encamp: Encamp, driver: str) -> None:
    hungry = "x=$(head -c 60000000 /dev/zero | tr '\\0' a); y=$x$x$x; echo ${#y}"
    done = encamp("run", "--memory", "128M", "--", "sh", "-c", hungry, check=False)
    assert done.returncode != 0
    assert b"memory of the machine ran out" in done.stderr
    fill = "head -c 100000000 /dev/zero > /var/tmp/filling"
    for words in (["--disk", "64M"], []):
        done = encamp("run", *words, "--", "sh", "-c", fill, check=False)
        assert done.returncode != 0
        assert b"disk" in done.stderr


def test_paused_machine_stands_still_and_its_clock_is_right_afterwards(
    encamp: Encamp, site_home: Home, start: Start, driver: str
) -> None:
    encamp("start", "--name", "pausing")
    count = "while :; do echo >> /tmp/count; done"
    with start("exec", "pausing", "--", "sh", "-c", count):
        time.sleep(0.5)
        encamp("pause", "pausing")
        before = _processor_time(site_home)
        time.sleep(1.0)
        assert _processor_time(site_home) - before < 0.2
        encamp("resume", "pausing")
        look = ("exec", "pausing", "--", "sh", "-c", "wc -c < /tmp/count")
        first = int(encamp(*look).stdout)
        clock = int(encamp("exec", "pausing", "--", "date", "+%s").stdout)
        assert abs(clock - time.time()) < 2
        time.sleep(0.3)
        assert int(encamp(*look).stdout) > first
    encamp("rm", "--force", "pausing")


def test_whatever_process_is_killed_nothing_is_left(
    encamp: Encamp, site_home: Home, driver: str
) -> None:
    """Of user-mode Linux, some are programs of the guest's, without which it goes on."""
    encamp("start", "--name", "doomed")
    count = len(machine_processes(site_home))
    encamp("rm", "--force", "doomed")
    for number in range(count):
        encamp("start", "--name", "doomed")
        family = sorted(machine_processes(site_home))
        os.kill(family[min(number, len(family) - 1)], signal.SIGKILL)
        end = time.monotonic() + 3
        while machine_processes(site_home) and time.monotonic() < end:
            time.sleep(0.02)
        if machine_processes(site_home):
            assert number > 1
            encamp("exec", "doomed", "--", "true")
        else:
            state = json.loads(encamp("show", "--json", "doomed").stdout)["state"]
            assert state == "failed"
        encamp("rm", "--force", "doomed")
        assert machine_processes(site_home) == []


# ── user-mode Linux ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def user_mode(encamp_environment: dict[str, str]) -> Iterator[None]:
    encamp_environment.update(ENCAMP_DRIVER="usermode", ENCAMP_ISOLATION=ISOLATIONS[-1])
    yield
    for name in ("ENCAMP_DRIVER", "ENCAMP_ISOLATION"):
        del encamp_environment[name]


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_root_inside_finds_no_way_to_the_host(
    encamp: Encamp, user_mode: None, isolation: str, tmp_path: Path
) -> None:
    """Where a kernel has ways to the host's files, its process has none."""
    (tmp_path / "secret").write_text("of the host")
    script = f"""
        mkdir /tmp/host
        mount -t hostfs none /tmp/host -o / 2>/dev/null
        for file in {tmp_path}/secret {Path(__file__)} /etc/passwd /etc/shadow /root/.profile; do
            cat /tmp/host$file 2>/dev/null && echo "$file can be read"
        done
        touch /tmp/host{tmp_path}/made 2>/dev/null && echo "files can be made"
        rm /tmp/host{tmp_path}/secret 2>/dev/null && echo "files can be removed"
        mount -t virtiofs encamp /tmp/host 2>/dev/null && echo "there is a virtiofs"
        [ $(ls /sys/block | grep -c ubd) -le 2 ] || echo "there are more disks"
        dd if=/dev/zero of=/dev/ubda bs=512 count=1 2>/dev/null && echo "the image can be changed"
        if [ {isolation} = kernel ]; then
            for name in /dev/mem /dev/kmem /dev/port /sys/kernel/debug/sleep_time; do
                [ -e $name ] && echo "there is $name"
            done
            grep hostfs /proc/filesystems
        fi
        echo done
    """
    done = encamp("run", "--isolation", isolation, "--", "sh", "-c", script)
    assert done.stdout == b"done\n"
    assert os.listdir(tmp_path) == ["secret"]


def test_kernel_that_panics_tells_its_last_words(encamp: Encamp, user_mode: None) -> None:
    done = encamp("run", "--", "sh", "-c", "echo c > /proc/sysrq-trigger", check=False)
    assert done.returncode == 72
    assert b"sysrq triggered crash" in done.stderr


def test_what_it_cannot_give_is_refused_before_anything_starts(
    encamp: Encamp, user_mode: None
) -> None:
    for words, lack in (
        (["--cpus", "2"], "1 processor"),
        (["--network", "user"], "network 'user'"),
        (["--isolation", "hardware"], "isolation is 'kernel'"),
        (["--disk", "64M", "--storage", "qcow2"], "storage 'qcow2'"),
        (["--after", "suspend"], "cannot be suspended"),
    ):
        done = encamp("run", *words, "--", "true", check=False)
        assert done.returncode == 64, words
        assert lack in done.stderr.decode()
        assert "emulation" in done.stderr.decode() or words[0] == "--isolation"
    encamp("start", "--name", "awake")
    assert b"cannot be suspended" in encamp("suspend", "awake", check=False).stderr
    encamp("rm", "--force", "awake")


def test_memory_that_the_host_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a file in /dev/shm, which takes room only as it is used: once there is none, the
    machine would end at its next step."""
    other = Standing(1, 0, "a", 1, 512 * MIB, 100 * MIB, 0, is_file=True)
    monkeypatch.setattr(usermode, "standing", lambda: [other])
    free = SimpleNamespace(free=600 * MIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    usermode.check_memory_file(188 * MIB)
    with pytest.raises(EncampError, match="does not fit into /dev/shm") as refused:
        usermode.check_memory_file(189 * MIB)
    assert refused.value.code is Code.NO_ROOM


def _processor_time(home: Home) -> float:
    total = 0.0
    for pid in machine_processes(home):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total
