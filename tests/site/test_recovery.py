"""Nothing lost, nothing left: whatever is killed at whatever moment, the next command keeps what
should live and clears away what should not."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from encamp.agent.vanished import end_vanished
from encamp.agent.watching import MachineWatch
from encamp.home import Home
from encamp.machines.directory import DOOMED
from encamp.machines.process import lock_holder
from encamp.model.errors import Code
from tests.conftest import ENCAMP, ROOT, Encamp, left_behind, machine_processes

pytestmark = pytest.mark.site

Dying = Callable[..., int]
"""Runs `encamp` so that something is killed at a point: the exit code of what is left of it."""

KILLED = -signal.SIGKILL

OTHER_SIZE = ("--memory", "96M")
"""A size no other test asks for, so that its template has to be made."""

PREPARING = "encamp.agent.making:Maker._prepare+before"
"""Journaled, not launched."""
WAKING = "encamp.agent.making:wake+before"
"""Launched, not awake."""
WAITING = "encamp.agent.live:Live.ready+before"
"""Awake; its guest has not answered."""
COPYING_IN = "encamp.agent.copying:success+before"
RUNNING = "encamp.agent.run:attend+before"
COPYING_OUT = "encamp.guest.archive_unpack:Unpacker.feed+before"
ENDING = "encamp.agent.run:_end+before"

FILES = ("--in", "word", "--out", "answer", "--out", "numbers")
COMMAND = ("sh", "-c", "cat word >answer; seq 100000 >numbers")
"""More than comes over at once, so that a machine can die in the middle of it."""


@pytest.fixture
def dying(encamp_environment: dict[str, str], tmp_path: Path, nothing_left: None) -> Dying:
    (tmp_path / "word").write_text("hello")

    def run(point: str, victim: str, *words: str | Path, home: Home | None = None) -> int:
        variables = {**os.environ, **encamp_environment, "PYTHONPATH": str(ROOT)}
        if home is not None:
            variables["ENCAMP_HOME"] = str(home.root)
        done = subprocess.run(
            [sys.executable, "-m", "tests.site.dying", point, victim, *words],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return done.returncode

    return run


def states(encamp: Encamp) -> dict[str, str]:
    """Every machine's state by its name, as the next command sees them."""
    return {machine["name"]: machine["state"] for machine in json.loads(ps(encamp))}


def ps(encamp: Encamp) -> bytes:
    return encamp("ps", "--json").stdout


def settled(home: Home) -> list[str]:
    """What is left behind, once processes that are already dying are dead."""
    deadline = time.monotonic() + 30
    while (left := left_behind(home)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def kill_machines(home: Home) -> None:
    for pid in machine_processes(home):
        os.kill(pid, signal.SIGKILL)
    settle = time.monotonic() + 30
    while machine_processes(home) and time.monotonic() < settle:
        time.sleep(0.01)


# ── jobs ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("victim", ["encamp", "both"])
@pytest.mark.parametrize(
    "point", [PREPARING, WAKING, WAITING, COPYING_IN, RUNNING, COPYING_OUT, ENDING]
)
def test_killed_job_leaves_nothing(
    encamp: Encamp, dying: Dying, site_home: Home, point: str, victim: str
) -> None:
    assert dying(point, victim, "run", *FILES, "--", *COMMAND) == KILLED
    assert states(encamp) == {}
    assert left_behind(site_home) == []


@pytest.mark.parametrize("point", [WAITING, COPYING_IN, RUNNING, COPYING_OUT])
def test_job_whose_machine_is_killed_fails_and_leaves_nothing(
    dying: Dying, site_home: Home, point: str
) -> None:
    code = dying(point, "machine", "run", *FILES, "--", *COMMAND)
    assert code == Code.MACHINE_LOST.value
    assert left_behind(site_home) == []


@pytest.mark.parametrize(
    "point", [PREPARING, WAKING, WAITING, COPYING_IN, RUNNING, COPYING_OUT, ENDING]
)
def test_interrupted_job_leaves_nothing(dying: Dying, site_home: Home, point: str) -> None:
    code = dying(point, "interrupted", "run", *FILES, "--", *COMMAND)
    # A job that is over may be done before it hears of it.
    over = {0} if point == ENDING else set()
    assert code in {128 + signal.SIGINT} | over
    assert left_behind(site_home) == []


def test_machine_killed_before_it_woke_is_made_again(
    dying: Dying, tmp_path: Path, site_home: Home
) -> None:
    assert dying(WAKING, "machine", "run", *FILES, "--", *COMMAND) == 0
    assert (tmp_path / "answer").read_text() == "hello"
    assert left_behind(site_home) == []


@pytest.mark.parametrize(
    ("after", "point", "left"),
    [
        ("destroy", "encamp.agent.live:Live.hang_up+before", ""),
        ("destroy", "encamp.machines.directory:MachineDirectory.remove+before", ""),
        ("shutdown", "encamp.agent.moving:Moves.ended+before", ""),
        ("shutdown", "encamp.agent.live:Live.let_go+before", "stopped"),
        ("pause", "encamp.machines.qemu:Qemu.pause+after", ""),
        ("pause", "encamp.agent.live:Live.let_go+before", "paused"),
        ("suspend", "encamp.machines.qemu:Qemu.save+before", ""),
        ("suspend", "encamp.machines.qemu:Qemu.save+after", ""),
        ("suspend", "encamp.agent.live:Live.let_go+before", "suspended"),
        ("keep", "encamp.agent.live:Live.record+before", ""),
        ("keep", "encamp.agent.live:Live.let_go+before", "running"),
    ],
)
def test_killed_over_the_end_of_a_job(
    encamp: Encamp, dying: Dying, after: str, point: str, left: str
) -> None:
    """Until the machine is where the user wanted it, it is the job's, and goes with it."""
    assert dying(point, "encamp", "run", "--name", "a", "--after", after, "--", "true") == KILLED
    assert states(encamp) == ({"a": left} if left else {})
    if left in ("paused", "suspended"):
        encamp("resume" if left == "paused" else "restore", "a")
    if left and left != "stopped":
        assert encamp("exec", "a", "--", "echo", "here").stdout == b"here\n"
    encamp("kill-all")


def test_machine_killed_over_the_end_of_a_job_leaves_nothing(dying: Dying, site_home: Home) -> None:
    assert dying(ENDING, "machine", "run", "--", "true") == 0
    assert left_behind(site_home) == []


# ── images and templates ─────────────────────────────────────────────────────────────────────────


def test_killed_building_leaves_nothing(encamp: Encamp, dying: Dying, tmp_path: Path) -> None:
    home = Home(tmp_path / "home").prepare()
    code = dying(
        "encamp.images.apt:Apt.update+before", "encamp", "image", "build", "mini", home=home
    )
    assert code == KILLED
    assert left_behind(home) != []
    encamp("ps", variables={"ENCAMP_HOME": str(home.root)})
    assert left_behind(home) == []


@pytest.mark.parametrize(
    ("point", "victim"),
    [
        ("encamp.machines.freeze:launch+before", "encamp"),
        ("encamp.machines.freeze:launch+after", "encamp"),
        ("encamp.machines.freeze:launch+after", "both"),
        ("encamp.machines.qemu:Qemu.save+before", "encamp"),
        ("encamp.machines.template:TemplateStore.keep+before", "encamp"),
    ],
)
def test_killed_over_a_template_leaves_nothing(
    encamp: Encamp, dying: Dying, site_home: Home, point: str, victim: str
) -> None:
    before = set(site_home.templates.iterdir())
    assert dying(point, victim, "run", *OTHER_SIZE, "--", "true") == KILLED
    assert states(encamp) == {}
    assert settled(site_home) == []
    assert set(site_home.templates.iterdir()) == before


def test_machine_killed_over_a_template_fails_the_job(dying: Dying, site_home: Home) -> None:
    code = dying("encamp.machines.freeze:launch+after", "machine", "run", *OTHER_SIZE, "--", "true")
    assert code == Code.MACHINE_LOST.value
    assert left_behind(site_home) == []


# ── machines by hand ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("point", [PREPARING, WAKING, WAITING])
@pytest.mark.parametrize("victim", ["encamp", "both"])
def test_start_that_was_killed_leaves_nothing(
    encamp: Encamp, dying: Dying, site_home: Home, point: str, victim: str
) -> None:
    assert dying(point, victim, "start") == KILLED
    assert states(encamp) == {}
    assert left_behind(site_home) == []


def test_machine_that_answered_is_kept_when_its_start_is_killed(
    encamp: Encamp, dying: Dying
) -> None:
    assert dying("encamp.agent.live:Live.let_go+before", "encamp", "start", "--name", "a") == KILLED
    assert states(encamp) == {"a": "running"}
    assert encamp("exec", "a", "--", "echo", "here").stdout == b"here\n"
    encamp("kill-all")


@pytest.mark.parametrize(
    ("move", "point", "back"),
    [
        ("pause", "encamp.machines.qemu:Qemu.pause+before", "resume"),
        ("pause", "encamp.machines.qemu:Qemu.pause+after", "resume"),
        ("suspend", "encamp.guest.channel:Channel.unmount+after", "resume"),
        ("suspend", "encamp.machines.monitor:Monitor.save+before", "resume"),
        ("suspend", "encamp.machines.monitor:Monitor.save+after", "resume"),
        ("suspend", "encamp.machines.process:Process.kill+before", "restore"),
    ],
)
def test_killed_move_can_be_taken_back(
    encamp: Encamp, dying: Dying, tmp_path: Path, move: str, point: str, back: str
) -> None:
    """A machine with a share and a disk is whole again after one more command."""
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "file").write_text("shared\n")
    encamp("start", "--name", "a", "--share", f"{shared}:/shared")
    encamp("exec", "a", "--", "sh", "-c", "echo kept >/tmp/kept")
    assert dying(point, "encamp", move, "a") == KILLED
    assert states(encamp) == {"a": "paused" if back == "resume" else "suspended"}
    encamp(back, "a")
    assert encamp("exec", "a", "--", "cat", "/tmp/kept", "/shared/file").stdout == b"kept\nshared\n"
    # And the move can be made after all.
    encamp(move, "a")
    encamp("kill-all")


def test_machine_goes_on_when_its_context_cannot_be_written(
    encamp: Encamp, encamp_environment: dict[str, str], site_home: Home, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("shared\n")
    encamp("start", "--name", "a", "--share", f"{tmp_path}:/shared")
    refused = subprocess.run(
        ["sh", "-c", 'ulimit -f 2000; exec "$@"', "sh", ENCAMP, "suspend", "a"],
        env={**os.environ, **encamp_environment},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert refused.returncode == Code.DISK_FULL.value
    assert b"never retrieved" not in refused.stderr
    assert states(encamp) == {"a": "running"}
    assert not list(site_home.machines.glob("*/context"))
    assert encamp("exec", "a", "--", "cat", "/shared/file").stdout == b"shared\n"
    encamp("suspend", "a")
    encamp("kill-all")


@pytest.mark.parametrize(
    ("point", "state"),
    [
        ("encamp.agent.keeper:launch+after", "suspended"),
        ("encamp.agent.keeper:wake+after", "suspended"),
        ("encamp.agent.keeper:Keeper._go_on+before", "suspended"),
        ("encamp.machines.qemu:Qemu.resume+after", "paused"),
        ("encamp.agent.moving:Moves.moved+after", "running"),
    ],
)
def test_killed_restore_can_be_repeated(
    encamp: Encamp, dying: Dying, site_home: Home, point: str, state: str
) -> None:
    encamp("start", "--name", "a", "--disk", "32M")
    encamp("exec", "a", "--", "sh", "-c", "echo kept >/tmp/kept; sync")
    encamp("suspend", "a")
    assert dying(point, "encamp", "restore", "a") == KILLED
    assert states(encamp) == {"a": state}
    assert len(machine_processes(site_home)) == (state != "suspended")
    if state != "running":
        encamp("restore" if state == "suspended" else "resume", "a")
    assert encamp("exec", "a", "--", "cat", "/tmp/kept").stdout == b"kept\n"
    assert not list(site_home.machines.glob("*/context"))
    encamp("kill-all")


@pytest.mark.parametrize("disk", [(), ("--disk", "32M")], ids=["in memory", "with a disk"])
@pytest.mark.parametrize("victim", ["encamp", "machine"])
def test_machine_that_had_not_answered_when_its_restore_failed_can_be_restored_again(
    encamp: Encamp, dying: Dying, disk: tuple[str, ...], victim: str
) -> None:
    encamp("start", "--name", "a", *disk)
    encamp("exec", "a", "--", "sh", "-c", "echo kept >/dev/shm/kept")
    encamp("suspend", "a")
    code = dying("encamp.agent.keeper:Keeper._greet+before", victim, "restore", "a")
    assert code == (KILLED if victim == "encamp" else Code.MACHINE_LOST.value)
    # With a disk that it may write to, it cannot be taken back while it still runs.
    paused = bool(disk) and victim == "encamp"
    assert states(encamp) == {"a": "paused" if paused else "suspended"}
    encamp("resume" if paused else "restore", "a")
    assert encamp("exec", "a", "--", "cat", "/dev/shm/kept").stdout == b"kept\n"
    encamp("kill-all")


@pytest.mark.parametrize(
    ("words", "point", "left"),
    [
        (("stop", "a"), "encamp.agent.moving:Moves.ended+before", {"a": "failed"}),
        (
            ("stop", "a"),
            "encamp.machines.directory:MachineDirectory.strip+before",
            {"a": "stopped"},
        ),
        (("kill", "a"), "encamp.agent.moving:Moves.ended+before", {"a": "failed"}),
        (("rm", "-f", "a"), "encamp.agent.moving:Moves.clear+before", {"a": "failed"}),
        (("kill-all",), "encamp.agent.moving:Moves.clear+before", {"a": "failed"}),
    ],
)
def test_killed_ending_leaves_at_most_a_record(
    encamp: Encamp,
    dying: Dying,
    site_home: Home,
    words: tuple[str, ...],
    point: str,
    left: dict[str, str],
) -> None:
    encamp("start", "--name", "a", "--disk", "32M")
    assert dying(point, "encamp", *words) == KILLED
    assert states(encamp) == left
    assert machine_processes(site_home) == []
    files = {path.name for path in site_home.machines.rglob("*") if not path.is_dir()}
    assert files <= {"machine.json", "console", "qemu.log", "lock", "client", "moving"}
    encamp("rm", "a")


def test_machine_that_was_killed_is_failed_and_keeps_its_console(
    encamp: Encamp, site_home: Home
) -> None:
    encamp("start", "--name", "a")
    kill_machines(site_home)
    (machine,) = json.loads(ps(encamp))
    assert machine["state"] == "failed"
    assert "process ended" in machine["reason"]
    refused = encamp("exec", "a", "--", "true", check=False)
    assert refused.returncode == Code.WRONG_STATE.value
    assert encamp("console", "a").returncode == 0
    encamp("rm", "a")


@pytest.mark.parametrize("lost", [True, False])
def test_machine_that_has_ruined_its_directory_holds_up_no_other(
    encamp: Encamp, site_home: Home, lost: bool
) -> None:
    """Its process may put there what it likes, such as a pipe in the place of its console."""
    encamp("start", "--name", "a")
    (directory,) = site_home.machines.iterdir()
    (directory / "run" / "console").unlink()
    os.mkfifo(directory / "run" / "console")
    if lost:
        kill_machines(site_home)
    assert states(encamp) == {"a": "failed" if lost else "running"}
    assert encamp("console", "a").stdout == b""
    assert encamp("run", "--", "echo", "other").stdout == b"other\n"
    encamp("rm", "-f", "a")


def test_machines_outlive_the_command_that_made_them(encamp: Encamp, site_home: Home) -> None:
    encamp("start", "--name", "a")
    encamp("run", "--name", "b", "--after", "keep", "--", "true")
    encamp("run", "--name", "c", "--after", "suspend", "--", "sh", "-c", "echo kept >/tmp/kept")
    assert states(encamp) == {"a": "running", "b": "running", "c": "suspended"}
    assert len(machine_processes(site_home)) == 2
    encamp("exec", "a", "--", "true")
    encamp("exec", "b", "--", "true")
    encamp("restore", "c")
    assert encamp("exec", "c", "--", "cat", "/tmp/kept").stdout == b"kept\n"
    encamp("kill-all")


# ── the journal ──────────────────────────────────────────────────────────────────────────────────


def test_directory_without_a_record_is_cleared(encamp: Encamp, site_home: Home) -> None:
    left = site_home.machines / "0123456789abcdef"
    (left / "run").mkdir(parents=True)
    (left / "machine.4711").write_text("{")
    assert states(encamp) == {}
    assert not left.exists()


@pytest.mark.parametrize("who", ["ps", "agent", "kill-all"])
def test_machine_whose_directory_was_removed_under_it_is_ended(
    encamp: Encamp, site_home: Home, tmp_path: Path, who: str
) -> None:
    encamp("start", "--name", "a")
    encamp("start", "--name", "b")
    lost = json.loads(encamp("show", "a", "--json").stdout)["id"]
    pid = lock_holder(site_home.machines / lost / "lock")
    assert pid is not None
    shutil.rmtree(site_home.machines / lost)
    assert end_vanished(Home(tmp_path / "another").prepare()) == []
    assert pid in machine_processes(site_home)
    match who:
        case "agent":
            MachineWatch(site_home, lambda: None).look(agree=True)
        case "ps":
            told = encamp("ps")
            assert lost[:8] in told.stderr.decode()
        case _:
            encamp("kill-all")
    assert pid not in machine_processes(site_home)
    assert states(encamp) == ({} if who == "kill-all" else {"b": "running"})
    encamp("kill-all")


def test_machine_of_another_version_of_encamp_is_left_alone(
    encamp: Encamp, site_home: Home
) -> None:
    encamp("start", "--name", "a")
    encamp("run", "--name", "b", "--after", "suspend", "--", "true")
    records = {path: path.read_bytes() for path in site_home.machines.glob("*/machine.json")}
    for path, record in records.items():
        changed = json.loads(record) | {"state": "dreaming"}
        path.write_text(json.dumps(changed))
    assert states(encamp) == {}
    for path, record in records.items():
        path.write_bytes(record)
    assert states(encamp) == {"a": "running", "b": "suspended"}
    encamp("kill-all")


# ── many at once ─────────────────────────────────────────────────────────────────────────────────


def test_recoveries_at_the_same_time_agree(encamp: Encamp, dying: Dying, site_home: Home) -> None:
    for _ in range(3):
        dying(WAITING, "encamp", "start")
    assert len(machine_processes(site_home)) >= 1
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(lambda _: states(encamp), range(4))] == [{}] * 4
    assert left_behind(site_home) == []


def test_recovery_never_touches_what_is_just_being_made(encamp: Encamp, site_home: Home) -> None:
    def job(number: int) -> bytes:
        return encamp("run", "--", "echo", str(number)).stdout

    with ThreadPoolExecutor(3) as pool:
        looking = pool.submit(lambda: [states(encamp) for _ in range(14)])
        done = [*pool.map(job, range(6))]
        looking.result()
    assert done == [b"%d\n" % number for number in range(6)]
    assert left_behind(site_home) == []


def test_killing_everything_ends_machines_that_are_just_being_made(
    encamp: Encamp, site_home: Home
) -> None:
    expected = {0, Code.UNKNOWN_MACHINE.value, Code.MACHINE_LOST.value, Code.INPUT_MISSING.value}
    with ThreadPoolExecutor(3) as pool:
        starting = [pool.submit(encamp, "start", check=False) for _ in range(4)]
        for _ in range(6):
            encamp("kill-all")
        unexpected = [
            future.result().stderr.decode()
            for future in starting
            if future.result().returncode not in expected
        ]
    assert unexpected == []
    encamp("kill-all")
    assert left_behind(site_home) == []


def test_a_removal_that_was_cut_short_is_finished(encamp: Encamp, site_home: Home) -> None:
    half_removed = site_home.machines / f"{DOOMED}{'0' * 32}"
    (half_removed / "run").mkdir(parents=True)
    (half_removed / "machine.json").write_text("{}")
    assert states(encamp) == {}
    assert list(site_home.machines.iterdir()) == []


@pytest.mark.parametrize("seed", range(2))
def test_killed_at_any_moment(
    encamp: Encamp, encamp_environment: dict[str, str], site_home: Home, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    variables = {**os.environ, **encamp_environment}
    for number in range(8):
        after = chance.choice(["destroy", "shutdown", "pause", "suspend", "keep"])
        words = ["run", "--name", f"m{number}", "--after", after, "--", "sh", "-c", "echo word"]
        job = subprocess.Popen(
            [ENCAMP, *words],
            env=variables,
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(chance.uniform(0.1, 0.7))
        if chance.random() < 0.4:
            for pid in machine_processes(site_home):
                with suppress(ProcessLookupError):  # It has just ended.
                    os.kill(pid, signal.SIGKILL)
        job.kill()
        job.wait()
    for name, state in states(encamp).items():
        if state == "paused":
            encamp("resume", name)
        elif state == "suspended":
            encamp("restore", name)
        if state in ("running", "paused", "suspended"):
            assert encamp("exec", name, "--", "echo", "here").stdout == b"here\n"
    assert "starting" not in states(encamp).values()
    encamp("kill-all")
    assert left_behind(site_home) == []
