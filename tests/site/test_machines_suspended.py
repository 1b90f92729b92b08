"""Machines in context files: what sleeps wakes up as it was."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from encamp.home import Home
from encamp.machines import accelerator
from encamp.model.driver import DriverName
from tests.builds import verdict_kept
from tests.conftest import Encamp, machine_processes

pytestmark = pytest.mark.site

SIZE = ("--cpus", "2", "--memory", "96M", "--disk", "64M")
COUNTS = (
    "cd /tmp; i=0;"
    " while :; do i=$((i+1)); echo $i > count.new; mv count.new count; sleep 0.05; done"
)
"""Whoever looks finds a whole number."""


@pytest.fixture
def clean(encamp: Encamp) -> Iterator[None]:
    yield
    encamp("kill-all")


def in_background(script: str) -> tuple[str, ...]:
    return ("--", "sh", "-c", f"({script}) </dev/null >/dev/null 2>&1 &")


def shell(encamp: Encamp, machine: str, script: str) -> list[str]:
    return encamp("exec", machine, "--", "sh", "-ec", script).stdout.decode().split()


def directory_of(encamp: Encamp, site_home: Home, machine: str) -> Path:
    record = json.loads(encamp("show", "--json", machine).stdout)
    return site_home.machines / str(record["id"])


@pytest.mark.parametrize("size", [(), SIZE], ids=["in memory", "with a disk"])
def test_suspended_machine_goes_on_where_it_was(
    encamp: Encamp, clean: None, site_home: Home, size: tuple[str, ...]
) -> None:
    encamp("start", "--name", "sleeper", *size)
    encamp("exec", "sleeper", *in_background(COUNTS))
    shell(encamp, "sleeper", "echo in memory > /dev/shm/file; echo on disk > /var/tmp/file")
    # It may not have begun to count yet.
    shell(encamp, "sleeper", "while ! test -e /tmp/count; do sleep 0.1; done")
    encamp("suspend", "sleeper")
    assert machine_processes(site_home) == []
    context = directory_of(encamp, site_home, "sleeper") / "context"
    assert context.stat().st_mode & 0o7777 == 0o600
    encamp("restore", "sleeper")
    assert not context.exists()
    before = int(time.time())
    script = (
        "cat /dev/shm/file /var/tmp/file; date +%s; cat /tmp/count;"
        " sleep 0.5; cat /tmp/count; hostname"
    )
    *words, clock, count, more, host = shell(encamp, "sleeper", script)
    assert words == ["in", "memory", "on", "disk"]
    assert host == "sleeper"
    assert int(more) > int(count) > 0
    assert before - 1 <= int(clock) <= int(time.time()) + 1
    # And once more: a machine that was restored is like any other.
    encamp("pause", "sleeper")
    encamp("suspend", "sleeper")
    encamp("restore", "sleeper")
    assert shell(encamp, "sleeper", "cat /var/tmp/file") == ["on", "disk"]


def test_shares_are_there_again_after_sleep(encamp: Encamp, clean: None, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    shares = ("--share", "one:/one", "--share", "two:/two:ro")
    encamp("start", "--name", "sleeper", *shares)
    encamp("suspend", "sleeper")
    (tmp_path / "two" / "new").write_text("written meanwhile")
    encamp("restore", "sleeper")
    assert shell(encamp, "sleeper", "cp /two/new /one/copy; echo done") == ["done"]
    assert (tmp_path / "one" / "copy").read_text() == "written meanwhile"
    assert encamp("exec", "sleeper", "--", "touch", "/two/x", check=False).returncode == 1


@pytest.mark.parametrize("state", ["running", "paused"])
def test_machine_with_a_share_in_use_is_not_suspended_and_stays_as_it_was(
    encamp: Encamp, clean: None, tmp_path: Path, site_home: Home, state: str
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    encamp("start", "--name", "busy", "--share", "one:/one", "--share", "two:/two")
    encamp("exec", "busy", *in_background("cd /one; exec sleep 1234"))
    if state == "paused":
        encamp("pause", "busy")
    refused = encamp("suspend", "busy", check=False)
    assert refused.returncode == 79
    assert b"/one is in use" in refused.stderr
    assert json.loads(encamp("show", "--json", "busy").stdout)["state"] == state
    assert not (directory_of(encamp, site_home, "busy") / "context").exists()
    if state == "paused":
        (process,) = machine_processes(site_home)
        assert stands_still(process)
        encamp("resume", "busy")
    shell(encamp, "busy", "echo 1 > /one/file; echo 2 > /two/file")
    assert (tmp_path / "one" / "file").read_text() == "1\n"
    assert (tmp_path / "two" / "file").read_text() == "2\n"
    shell(encamp, "busy", "killall sleep; while pidof sleep; do :; done")
    encamp("suspend", "busy")


def stands_still(process: int) -> bool:
    """Whether a process uses (nearly) no processor for a while."""

    def ticks() -> int:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    time.sleep(1)
    return ticks() - before < 10


def test_machine_whose_context_is_damaged_stays_suspended_with_a_clear_error(
    encamp: Encamp, clean: None, site_home: Home
) -> None:
    encamp("start", "--name", "sleeper")
    encamp("suspend", "sleeper")
    context = directory_of(encamp, site_home, "sleeper") / "context"
    whole = context.read_bytes()
    context.write_bytes(whole[: len(whole) // 2])
    failed = encamp("restore", "sleeper", check=False)
    assert failed.returncode == 72
    assert b"load of migration failed" in failed.stderr
    assert machine_processes(site_home) == []
    context.write_bytes(whole)
    encamp("restore", "sleeper")
    assert shell(encamp, "sleeper", "echo up") == ["up"]


def test_machine_whose_share_is_gone_stays_suspended_with_a_clear_error(
    encamp: Encamp, clean: None, tmp_path: Path, site_home: Home
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    encamp("start", "--name", "sleeper", "--share", "shared:/s")
    encamp("suspend", "sleeper")
    shared.rmdir()
    failed = encamp("restore", "sleeper", check=False)
    assert failed.returncode in (66, 72)
    assert str(shared).encode() in failed.stderr
    assert machine_processes(site_home) == []
    shared.mkdir()
    encamp("restore", "sleeper")
    assert shell(encamp, "sleeper", "echo up > /s/file; echo up") == ["up"]


def change(record: Path, **changes: object) -> None:
    record.write_text(json.dumps({**json.loads(record.read_bytes()), **changes}))


def test_machine_wakes_up_on_what_it_was_suspended_on_whatever_new_ones_are_made_on(
    encamp: Encamp, clean: None, site_home: Home
) -> None:
    encamp("start", "--name", "sleeper")
    made_on = json.loads(encamp("show", "--json", "sleeper").stdout)["driver"]
    shell(encamp, "sleeper", "echo in memory > /dev/shm/file")
    encamp("suspend", "sleeper")
    with verdict_kept(site_home):
        believed = {"kvm": DriverName.EMULATION, "emulation": DriverName.KVM}[made_on]
        evidence = accelerator._evidence()
        verdict = accelerator.Verdict(believed, "a test", evidence, time.time(), doubt=600.0)
        accelerator._keep(site_home, verdict)
        restored = encamp("restore", "sleeper", check=False)
        assert restored.returncode == (0 if made_on == "emulation" else 79)
    if made_on == "kvm":
        encamp("restore", "sleeper")
    assert shell(encamp, "sleeper", "cat /dev/shm/file") == ["in", "memory"]


def test_machine_suspended_under_kvm_is_not_woken_without_it_nor_on_another_processor(
    encamp: Encamp, clean: None, site_home: Home
) -> None:
    encamp("start", "--name", "sleeper")
    encamp("suspend", "sleeper")
    directory = directory_of(encamp, site_home, "sleeper")
    before = (directory / "machine.json").read_bytes()
    change(directory / "machine.json", driver="kvm", processor="Another (Vendor 1/2/3)")
    refused = encamp("restore", "sleeper", check=False)
    assert refused.returncode == 79
    assert b"was suspended under KVM" in refused.stderr or b"Vendor 1/2/3" in refused.stderr
    assert b"It stays suspended" in refused.stderr
    assert json.loads(encamp("show", "--json", "sleeper").stdout)["state"] == "suspended"
    (directory / "machine.json").write_bytes(before)
    encamp("restore", "sleeper")
    assert shell(encamp, "sleeper", "echo up") == ["up"]
