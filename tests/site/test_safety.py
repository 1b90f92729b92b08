"""Whoever runs a machine, and whatever runs in it: nobody else is hurt and nobody else looks in."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from encamp.agent import others, promised
from encamp.agent.promised import Promise
from encamp.home import Home
from encamp.machines import room
from encamp.machines.account import ACCOUNT
from encamp.machines.engine import FILE_LIMIT
from encamp.machines.hardware import Backing, Hardware, command_line
from encamp.machines.qemu import kvm_group
from encamp.machines.standing import Standing, standing
from encamp.model.driver import DriverName
from encamp.model.errors import Code, EncampError
from encamp.model.size import MIB, Size
from tests.conftest import ENCAMP, Encamp, left_behind, machine_processes
from tests.site.accounts import Account, accounts

pytestmark = pytest.mark.site

GIB = 1024 * MIB


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory that other accounts can enter."""
    with tempfile.TemporaryDirectory(prefix="encamp-accounts-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def campers(site_home: Home, place: Path) -> Iterator[list[Account]]:
    if os.geteuid() != 0:
        pytest.skip("only root can make accounts")
    # Accounts are made with the file modes of this process.
    before = os.umask(0o022)
    try:
        with accounts(2, place, site_home) as made:
            yield made
    finally:
        os.umask(before)


@pytest.fixture
def alice(campers: list[Account]) -> Iterator[Account]:
    yield campers[0]
    campers[0].encamp("kill-all")
    assert left_behind(campers[0].home) == []


@pytest.fixture
def bob(campers: list[Account]) -> Account:
    return campers[1]


@pytest.fixture
def machine(encamp: Encamp, site_home: Home) -> Iterator[str]:
    """A running machine of root's: its name."""
    encamp("start", "--name", "victim")
    yield "victim"
    encamp("kill-all")


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, value in (line.split(":", 1) for line in lines)}


SECRET = {"CLOUD_SECRET": "of the caller's"}


def assert_few_rights(pid: int, uid: int) -> None:
    variables = Path(f"/proc/{pid}/environ").read_text().rstrip("\0").split("\0")
    assert {line.partition("=")[0] for line in variables} == {"PATH", "LANG", "LD_PRELOAD"}
    found = status(pid)
    assert set(found["Uid"].split()) == {str(uid)}
    assert "0" not in found["Gid"].split()
    assert found["NoNewPrivs"] == "1"
    assert found["Seccomp"] == "2"
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        if kind != "CapBnd" or uid == account_uid():
            assert int(found[kind], 16) == 0, kind


def limit(pid: int, name: str) -> int:
    """One of a process's limits, which it cannot raise."""
    (line,) = (
        line
        for line in Path(f"/proc/{pid}/limits").read_text().splitlines()
        if line.startswith(name)
    )
    return int(line.removeprefix(name).split()[1])


def account_uid() -> int:
    return pwd.getpwnam(ACCOUNT).pw_uid


# ── whom a machine runs as ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shares", [False, True])
def test_roots_machine_runs_as_an_account_of_its_own_without_any_right(
    encamp: Encamp, site_home: Home, tmp_path: Path, shares: bool
) -> None:
    encamp("start", "--name", "a", *(("--share", tmp_path) if shares else ()), variables=SECRET)
    (pid,) = machine_processes(site_home)
    assert account_uid() != 0
    assert_few_rights(pid, account_uid())
    assert set(status(pid)["Groups"].split()) <= {str(kvm_group())}
    encamp("kill-all")


def test_machine_runs_as_its_owner(alice: Account) -> None:
    alice.encamp("start", "--name", "a", variables=SECRET)
    (pid,) = machine_processes(alice.home)
    assert_few_rights(pid, alice.uid)
    done = alice.encamp("exec", "a", "--", "sh", "-c", "id -u; id -g; id -un")
    assert done.stdout.decode().split() == [str(alice.uid), str(alice.gid), alice.name]


# ── other users ──────────────────────────────────────────────────────────────────────────────────

PRY = """
import os, socket, sys
for path in map(str.strip, sys.stdin):
    kind, name = path.split(' ', 1)
    try:
        if kind == 'socket':
            socket.socket(socket.AF_UNIX).connect(name)
        elif kind == 'directory':
            os.listdir(name)
        else:
            os.close(os.open(name, os.O_RDONLY))
        print(name)
    except OSError:
        pass
"""


def within_reach(account: Account, home: Home) -> list[str]:
    """What of a home's machines an account can read, list or connect to."""
    lines = []
    for path in (home.machines, *home.machines.rglob("*")):
        kind = "directory" if path.is_dir() else "socket" if path.is_socket() else "file"
        lines.append(f"{kind} {path}")
    for pid in machine_processes(home):
        lines += [f"file /proc/{pid}/{name}" for name in ("mem", "environ", "maps")]
        lines.append(f"directory /proc/{pid}/fd")
    assert len(lines) > 15
    done = account.run(account.python, "-c", PRY, input="\n".join(lines).encode())
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().split()


def test_nobody_else_can_read_or_reach_anything_of_a_machine(
    alice: Account, bob: Account, machine: str, site_home: Home
) -> None:
    alice.encamp("start", "--name", "a")
    alice.encamp("run", "--after", "suspend", "--", "true")
    assert within_reach(bob, alice.home) == []
    # Even if the suite's home is hidden from everybody, nothing in it relies on that.
    assert within_reach(bob, site_home) == []


def test_nobody_else_can_read_anything_of_a_template(
    alice: Account, machine: str, site_home: Home
) -> None:
    alice.encamp("run", "--disk", "64M", "--", "true")
    (pid,) = machine_processes(site_home)
    open_files = [fd.readlink() for fd in Path(f"/proc/{pid}/fd").iterdir()]
    cloned_from = {path.parent for path in open_files if path.name == "memory"}
    assert len(cloned_from) == 1
    for directory in (*cloned_from, *alice.home.templates.iterdir()):
        files = [*directory.iterdir()]
        assert {file.name for file in files} >= {"memory", "state", "console", "template.json"}
        for path in (directory, *files):
            assert stat.S_IMODE(path.stat().st_mode) & 0o027 == 0, path


def test_nobody_else_can_see_use_or_end_a_machine(alice: Account, bob: Account) -> None:
    alice.encamp("start", "--name", "a")
    (machine,) = json.loads(alice.encamp("ps", "--json").stdout)
    link = bob.directory / "link"
    borrowed = bob.directory / "borrowed"
    bob.script("import os,sys; os.symlink(sys.argv[1], sys.argv[2])", alice.home.root, link)
    # A home of one's own whose machines are somebody else's.
    bob.script(
        "import os,sys; os.mkdir(sys.argv[2]); os.symlink(sys.argv[1], sys.argv[2] + '/machines')",
        alice.home.machines,
        borrowed,
    )
    attacks: list[tuple[str, ...]] = [
        ("ps",),
        ("exec", "a", "--", "true"),
        ("kill", machine["id"]),
        ("rm", "-f", "a"),
        ("kill-all",),
        ("run", "--", "true"),
    ]
    for home in (alice.home.root, link, borrowed):
        for words in attacks if home != borrowed else attacks[:3]:
            refused = bob.encamp(*words, check=False, variables={"ENCAMP_HOME": str(home)})
            assert refused.returncode == Code.NOT_PERMITTED.value, (words, refused.stderr)
            assert b"Traceback" not in refused.stderr
    assert json.loads(bob.encamp("ps", "--json").stdout) == []
    for words in (("exec", machine["id"], "--", "true"), ("kill", "a"), ("show", "a")):
        unknown = bob.encamp(*words, check=False)
        assert unknown.returncode == Code.UNKNOWN_MACHINE.value
    everyone = bob.encamp("ps", "--everyone", check=False)
    assert everyone.returncode == Code.NOT_PERMITTED.value
    assert alice.encamp("exec", "a", "--", "echo", "here").stdout == b"here\n"


@pytest.mark.parametrize("name", ["../up", "/etc", "a/b", "", ".", "-", "a" * 64, "a\nb", "ü"])
def test_hostile_names_are_refused(encamp: Encamp, name: str) -> None:
    done = encamp("start", f"--name={name}", check=False)
    assert done.returncode == Code.USAGE.value
    done = encamp("show", "--", name, check=False)
    assert done.returncode == Code.UNKNOWN_MACHINE.value


def test_root_sees_and_ends_machines_of_others(alice: Account) -> None:
    alice.encamp("start", "--name", "a")
    (pid,) = machine_processes(alice.home)
    (machine,) = json.loads(alice.encamp("ps", "--json").stdout)
    script = f"""
import asyncio
from encamp.agent import others, promised
from encamp.agent.promised import Promise
(found,) = [found for found in others.strangers(set()) if found.pid == {pid}]
print(found.id, found.owner, asyncio.run(others.end(found)), asyncio.run(others.end(found)))
"""
    done = subprocess.run(
        [alice.python, "-c", script],
        env={"PYTHONPATH": str(alice.library), "PATH": os.environ["PATH"]},
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.decode().split() == [machine["id"], str(alice.uid), "True", "False"]
    (ended,) = json.loads(alice.encamp("ps", "--json").stdout)
    assert ended["state"] == "failed"


ROOTS_KILL_ALL = """
import pathlib, subprocess, sys
import encamp.home
from encamp.cli.main import run_command
library, system, home, python, uid, gid = sys.argv[1:]
encamp.home.SYSTEM_HOME = pathlib.Path(system)
def alice(*words):
    return subprocess.run([python, '-m', 'encamp.cli.main', *words], user=int(uid), group=int(gid),
        extra_groups=[], cwd=home, capture_output=True, check=True,
        env={'HOME': home, 'PYTHONPATH': library, 'PATH': '/usr/bin:/bin'}).stdout.decode()
alice('start', '--name', 'a')
code = run_command(['kill-all'])
print(code, alice('ps', '--json'), sep='|')
"""


def test_roots_kill_all_ends_everybodys_machines(alice: Account, tmp_path: Path) -> None:
    """In a world of its own, where `everybody` is one account."""
    world = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    words = [alice.library, tmp_path / "system", alice.directory, alice.python]
    done = subprocess.run(
        [*world, alice.python, "-c", ROOTS_KILL_ALL]
        + [str(word) for word in (*words, alice.uid, alice.gid)],
        env={"PYTHONPATH": str(alice.library), "PATH": os.environ["PATH"]},
        capture_output=True,
        check=True,
        timeout=120,
    )
    killed, _, rest = done.stdout.decode().partition("\n")
    code, machines = rest.split("|")
    (machine,) = json.loads(machines)
    assert (killed, code, machine["state"]) == (machine["id"], "0", "failed")


def test_root_with_a_home_of_its_own_leaves_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENCAMP_HOME", "/somewhere")
    assert not others.may_see_others()


def test_strange_process_names_do_not_reach_a_terminal(tmp_path: Path) -> None:
    """Anybody can call a process what he likes."""
    program = tmp_path / "qemu-system-x86"
    shutil.copy("/bin/sleep", program)
    fake = subprocess.Popen(
        ["sleep", "60", "-name", "encamp-\x1b[2J", "-m", "1024K"], executable=program
    )
    try:
        assert fake.pid not in [machine.pid for machine in standing()]
    finally:
        fake.kill()
        fake.wait()


@pytest.mark.parametrize(
    ("layers", "driver", "words", "overhead"),
    [
        (1, DriverName.EMULATION, 32, 48),
        (0, DriverName.EMULATION, 128, 144),
        (0, DriverName.KVM, None, 48),
    ],
)
def test_buffer_of_a_machine_is_counted_as_large_as_it_is(
    tmp_path: Path, layers: int, driver: DriverName, words: int | None, overhead: int
) -> None:
    """Before it stands, and when it does."""
    hardware = Hardware(driver, Size(1, GIB), "none", layers)
    backing = Backing("a", [], "", 0, [], 0)
    command = command_line(Path("sleep"), hardware, backing)
    assert any(f"tb-size={words}" in word for word in command) == (words is not None)
    assert room.overhead(hardware) == overhead * MIB
    program = tmp_path / "qemu-system-x86"
    shutil.copy("/bin/sh", program)
    script = ["sh", "-c", "echo; read line", *command]
    pipe = subprocess.PIPE
    with subprocess.Popen(script, executable=program, stdin=pipe, stdout=pipe) as fake:
        assert fake.stdout is not None
        fake.stdout.readline()
        (found,) = [machine for machine in standing() if machine.pid == fake.pid]
    assert (found.memory, found.overhead) == (GIB, overhead * MIB)


# ── hostile jobs ─────────────────────────────────────────────────────────────────────────────────


ENDLESS = ("--timeout", "2")


@pytest.mark.parametrize(
    ("script", "options", "code"),
    [
        ("x=aaaaaaaaaa; while :; do x=$x$x; done", (), 128 + signal.SIGKILL),
        ("f() { f | f & }; f; sleep 100", ENDLESS, Code.TIMEOUT.value),
        ("cat /dev/zero >/tmp/full", (), 1),
        ("cat /dev/zero >/dev/ttyS0", ENDLESS, Code.TIMEOUT.value),
        ("sleep 1000 >/dev/null 2>&1 & (setsid sleep 1000 >/dev/null 2>&1 &)", (), 0),
        # That of the shares has nobody at its other end: writing to it would wait.
        ('for p in /dev/vport*; do timeout 1 sh -c "echo rubbish >$p"; done; exit 1', (), 1),
    ],
    ids=["memory", "processes", "disk", "console", "left behind", "channels"],
)
def test_hostile_job_hurts_only_itself(
    encamp: Encamp,
    machine: str,
    site_home: Home,
    script: str,
    options: tuple[str, ...],
    code: int,
) -> None:
    done = encamp("exec", *options, machine, "--", "sh", "-c", script, check=False)
    assert done.returncode == code, done.stderr.decode()
    ran_out = b"The memory of the machine ran out" in done.stderr
    assert ran_out == (code == 128 + signal.SIGKILL)
    full = b"The disk of the machine is full" in done.stderr
    assert full == ("full" in script)
    assert (b"--memory gives one more" in done.stderr) == (ran_out or full)
    assert encamp("exec", machine, "--", "echo", "here").stdout == b"here\n"
    encamp("stop", machine)
    assert machine_processes(site_home) == []


def test_a_command_is_told_of_its_own_want_of_memory_and_of_no_others(
    encamp: Encamp, machine: str
) -> None:
    hungry = "(x=aaaaaaaaaa; while :; do x=$x$x; done) 2>/dev/null; exit"
    for code, tells in ((0, False), (3, True)):
        encamp("exec", machine, "--", "sh", "-c", f"{hungry} {code}", check=False)
        done = encamp("exec", machine, "--", "sh", "-c", f"{hungry} {code}", check=False)
        assert done.returncode == code
        assert (b"The memory of the machine ran out" in done.stderr) == tells
    done = encamp("exec", machine, "--", "false", check=False)
    assert (done.returncode, done.stderr) == (1, b"")


def test_commands_that_run_out_of_memory_together_are_all_told(
    encamp: Encamp, machine: str
) -> None:
    hungry = "until [ -e /tmp/go ]; do sleep 0.1; done; x=aaaaaaaaaa; while :; do x=$x$x; done"
    words = ("exec", machine, "--", "sh", "-c")
    with ThreadPoolExecutor(2) as together:
        both = [together.submit(encamp, *words, hungry, check=False) for _ in range(2)]
        encamp(*words, "touch /tmp/go")
    for done in (each.result() for each in both):
        assert done.returncode != 0
        assert b"The memory of the machine ran out" in done.stderr


def test_command_beside_another_is_told_of_no_want_that_was_before(
    encamp: Encamp, machine: str
) -> None:
    words = ("exec", machine, "--", "sh", "-c")
    with ThreadPoolExecutor(1) as together:
        waits = together.submit(encamp, *words, "until [ -e /tmp/end ]; do sleep 0.1; done")
        try:
            # One whose child was ended for that, and that does not mind.
            encamp(*words, "(x=aaaaaaaaaa; while :; do x=$x$x; done) 2>/dev/null; true")
            later = encamp(*words, "exit 3", check=False)
        finally:
            encamp(*words, "touch /tmp/end")
    assert waits.result().returncode == 0
    assert (later.returncode, later.stderr) == (3, b"")


def test_machine_cannot_write_more_than_its_disk(encamp: Encamp, site_home: Home) -> None:
    encamp("start", "--name", "a", "--disk", "32M")
    done = encamp("exec", "a", "--", "sh", "-c", "cat /dev/urandom >/tmp/full", check=False)
    assert done.returncode == 1
    assert b"No space left" in done.stderr
    encamp("exec", "a", "--", "sh", "-c", "rm /tmp/full; echo word >/tmp/word; sync")
    (disk,) = site_home.machines.glob("*/run/disk")
    assert disk.stat().st_blocks * 512 < 34 * MIB
    (pid,) = machine_processes(site_home)
    assert 32 * MIB < limit(pid, "Max file size") < 34 * MIB + FILE_LIMIT
    encamp("kill-all")


def test_console_of_a_machine_is_bounded(encamp: Encamp, machine: str, site_home: Home) -> None:
    (pid,) = machine_processes(site_home)
    assert limit(pid, "Max file size") == FILE_LIMIT
    assert limit(pid, "Max core file size") == 0


def test_output_that_nobody_reads_stops_the_command_not_the_host(
    encamp_environment: dict[str, str], nothing_left: None, tmp_path: Path
) -> None:
    job = subprocess.Popen(
        [ENCAMP, "run", "--", "yes"],
        env={**os.environ, **encamp_environment},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    )
    assert job.stdout is not None
    with job.stdout:
        assert job.stdout.readline() == b"y\n"
        job.send_signal(signal.SIGSTOP)
        job.send_signal(signal.SIGCONT)
        assert int(status(job.pid)["VmRSS"].split()[0]) < 200 * 1024
        job.send_signal(signal.SIGTERM)
        while piece := job.stdout.read(1 << 16):
            assert set(piece) <= set(b"y\n")
    assert job.wait(timeout=60) == 128 + signal.SIGTERM


def test_input_that_nobody_reads_does_not_hold_a_job_up(encamp: Encamp) -> None:
    assert encamp("run", "--", "true", input=bytes(8 * MIB)).returncode == 0


def test_home_that_one_may_not_enter_is_said_to_be_anothers(alice: Account, place: Path) -> None:
    closed = place / "home-of-another"
    closed.mkdir(mode=0o700)
    plain = {"ENCAMP_HOME": str(closed / "home"), "ENCAMP_DEBUG": ""}
    done = alice.encamp("batch", "status", check=False, variables=plain)
    other = alice.encamp("image", "ls", check=False, variables=plain)
    for each in (done, other):
        assert b"Traceback" not in each.stderr
    assert other.returncode == Code.NOT_PERMITTED.value
    assert b"ENCAMP_HOME" in other.stderr


def test_no_network_unless_asked_for(encamp: Encamp) -> None:
    assert encamp("run", "--", "ls", "/sys/class/net").stdout == b"lo\n"


# ── room ─────────────────────────────────────────────────────────────────────────────────────────


def test_machine_without_room_is_refused_with_the_figure_that_is_missing(encamp: Encamp) -> None:
    most = f"{room.total_memory() // MIB - 200}M"
    refused = encamp("run", "--memory", most, "--", "true", check=False)
    assert refused.returncode == Code.NO_ROOM.value
    assert b"more than is free" in refused.stderr
    assert b"try again later" in refused.stderr


def test_what_the_host_could_never_have_is_no_matter_of_waiting(encamp: Encamp) -> None:
    for wanted in (("--memory", "4T"), ("--disk", "900T"), ("--cpus", "4096")):
        refused = encamp("run", *wanted, "--", "true", check=False)
        assert refused.returncode == Code.USAGE.value
        assert b"later" not in refused.stderr


def test_what_an_agent_has_promised_is_not_given_to_others(encamp: Encamp, site_home: Home) -> None:
    promise = Promise(
        id="claim", owner=0, size=Size(1, 1 << 50), memory=1 << 50, until=time.time() + 3600
    )
    directory = promised.directory(site_home)
    directory.mkdir(exist_ok=True)
    (directory / promise.id).write_bytes(msgspec.json.encode(promise))
    try:
        refused = encamp("run", "--", "true", check=False)
    finally:
        (directory / promise.id).unlink()
    assert refused.returncode == Code.NO_ROOM.value
    assert b"more than is free" in refused.stderr


def test_what_machines_may_still_grow_to_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    used = 100 * MIB
    monkeypatch.setattr(room, "available_memory", lambda: 4 * GIB)
    small, large = 48 * MIB, 144 * MIB
    monkeypatch.setattr(
        room,
        "standing",
        lambda: [
            Standing(1, os.geteuid(), "a", 1, GIB, used, overhead=small),
            Standing(2, os.geteuid(), "b", 1, GIB, 0, overhead=large),
        ],
    )
    free = 4 * GIB - room.RESERVE - 2 * GIB - small - large + used

    def check(layers: int, memory: int) -> None:
        room.check_room(Hardware(DriverName.EMULATION, Size(1, memory), "none", layers), tmp_path)

    check(1, free - small)
    check(0, free - large)
    with pytest.raises(EncampError):
        check(0, free - large + MIB)
    with pytest.raises(EncampError) as refused:
        check(1, free - small + 10 * MIB)
    assert refused.value.code is Code.NO_ROOM
    assert "11 MiB more than is free" in refused.value.sentence


# ── shares ───────────────────────────────────────────────────────────────────────────────────────

HOSTILE_SHARE = """
cd /shared
ln -s /etc/shadow made
ln -s / out
cat made planted out/etc/shadow ../etc/shadow
cp /bin/busybox setuid && chmod 4755 setuid
cp /bin/busybox setgid && chmod 2755 setgid
mkdir directory; chmod 4755 directory
mknod device c 1 3
chown 1 word
ln /etc/passwd hard
mount --bind / directory
echo done >result
"""


def hostile_share(place: Path, name: str) -> Path:
    shared = place / name
    shared.mkdir()
    (shared / "word").write_text("word")
    (shared / "planted").symlink_to("/etc/shadow")
    return shared


def assert_harmless(shared: Path, uid: int, output: bytes) -> None:
    secrets = Path("/etc/shadow").read_text().split("\n")
    assert not any(line and line.encode() in output for line in secrets)
    assert (shared / "result").read_text() == "done\n"
    for path in shared.rglob("*"):
        found = path.lstat()
        assert not found.st_mode & stat.S_ISUID, path
        assert not stat.S_ISCHR(found.st_mode), path
        assert found.st_uid == uid, path
        if uid == 0:
            assert not found.st_mode & stat.S_ISGID, path


def test_share_of_root_opens_no_way_out(encamp: Encamp, tmp_path: Path) -> None:
    shared = hostile_share(tmp_path, "shared")
    done = encamp("run", "--share", f"{shared}:/shared", "--", "sh", "-c", HOSTILE_SHARE)
    assert_harmless(shared, 0, done.stdout)


def test_share_of_a_user_opens_no_way_out(alice: Account) -> None:
    shared = hostile_share(alice.directory, "shared")
    for path in (shared, *shared.iterdir()):
        os.chown(path, alice.uid, alice.gid, follow_symlinks=False)
    done = alice.encamp("run", "--share", f"{shared}:/shared", "--", "sh", "-c", HOSTILE_SHARE)
    assert_harmless(shared, alice.uid, done.stdout)


def test_user_cannot_share_what_he_cannot_write(alice: Account, place: Path) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    refused = alice.encamp("run", "--share", f"{closed}:/s", "--", "true", check=False)
    assert refused.returncode == Code.NOT_PERMITTED.value
    readable = place / "readable"
    readable.mkdir(mode=0o755)
    tried = alice.encamp(
        *("run", "--share", f"{readable}:/s", "--", "sh", "-c", "echo x >/s/x"), check=False
    )
    assert tried.returncode == 1
    assert list(readable.iterdir()) == []


def test_readonly_share_of_root_stays_as_it_is(encamp: Encamp, tmp_path: Path) -> None:
    (tmp_path / "word").write_text("word")
    script = "echo x >/s/x; echo x >/s/word; rm -f /s/word; mount -o remount,rw /s; echo x >/s/x"
    done = encamp("run", "--share", f"{tmp_path}:/s:ro", "--", "sh", "-c", script, check=False)
    assert done.returncode != 0
    assert [path.name for path in tmp_path.iterdir()] == ["word"]
    assert (tmp_path / "word").read_text() == "word"


def test_input_that_cannot_be_read_ends_the_run_before_the_command(alice: Account) -> None:
    secret = alice.directory / "secret"
    secret.touch()
    os.chown(secret, alice.uid, alice.gid)
    secret.chmod(0)
    done = alice.encamp("run", "--in", secret, "--", "echo", "ran", check=False)
    assert done.returncode == Code.COPY_FAILED.value
    assert done.stdout == b""
    assert b"secret" in done.stderr
