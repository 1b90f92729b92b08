"""Machines on hosts where KVM worked and does so no more. In place of its device is another one, in
a mount namespace of the test's own."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from encamp.home import Home
from encamp.machines import accelerator
from encamp.machines.accelerator import Verdict
from encamp.machines.account import process_user
from encamp.model.driver import DriverName
from tests.builds import VERDICT, verdict_kept
from tests.conftest import ENCAMP
from tests.site.siting import root_only

pytestmark = [
    pytest.mark.site,
    root_only,
    pytest.mark.skipif(not Path("/dev/kvm").exists(), reason="nothing to put a device in place of"),
]

Masked = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def believed(site_home: Home) -> Iterator[Path]:
    """A guest has answered under KVM, as far as the home knows; the file that says so."""
    verdict = Verdict(DriverName.KVM, "a guest answered under it", accelerator._evidence(), 0.0)
    with verdict_kept(site_home):
        accelerator._keep(site_home, verdict)
        yield site_home.root / VERDICT


@pytest.fixture
def masked(encamp_environment: dict[str, str], tmp_path: Path, nothing_left: None) -> Masked:
    """Runs `encamp` where /dev/kvm is another device, of this mode and group."""
    device = tmp_path / "device"
    os.mknod(device, stat.S_IFCHR, os.makedev(1, 3))

    def run(mode: int, group: int, *words: str) -> subprocess.CompletedProcess[bytes]:
        os.chown(device, 0, group)
        device.chmod(mode)
        script = 'mount --bind "$0" /dev/kvm && exec "$@"'
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", script, device, ENCAMP, *words],
            env={**os.environ, **encamp_environment, "ENCAMP_QUIET": ""},
            capture_output=True,
            timeout=120,
            check=False,
        )

    return run


def notes(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    lines = done.stderr.decode().splitlines()
    return [line for line in lines if line.startswith("encamp: This machine is emulated")]


def test_machine_is_emulated_when_its_account_may_not_open_kvm_any_more(
    masked: Masked, believed: Path
) -> None:
    user = process_user(0)
    assert user is not None
    before = believed.read_bytes()
    done = masked(0o600, 0, "run", "--timings", "--", "echo", "done")
    assert (done.returncode, done.stdout) == (0, b"done\n"), done.stderr
    (note,) = notes(done)
    assert "encamp may not open /dev/kvm" in note
    assert "chgrp kvm /dev/kvm" in note
    assert b"cloned, emulated" in done.stderr
    # It is no verdict on KVM, which works again as soon as it may be opened.
    assert believed.read_bytes() == before
    asked = masked(0o660, user[1], "accelerator")
    assert asked.stdout.startswith(b"kvm: a guest answered under it\n")


@pytest.mark.parametrize("how", [(), ("--boot",)])
def test_machine_is_emulated_when_kvm_is_refused_to_it(
    masked: Masked, believed: Path, how: tuple[str, ...]
) -> None:
    done = masked(0o666, 0, "run", *how, "--", "echo", "done")
    assert (done.returncode, done.stdout) == (0, b"done\n"), done.stderr
    (note,) = notes(done)
    assert "KVM was refused" in note
    assert "encamp accelerator --again" in note
    verdict = json.loads(believed.read_bytes())
    assert verdict["driver"] == "emulation"
    assert verdict["doubt"] > 0
    # The next one does not try.
    assert notes(masked(0o666, 0, "run", "--", "true")) == []


def test_lists_tell_what_a_machine_runs_on(masked: Masked, believed: Path) -> None:
    masked(0o600, 0, "start", "--name", "a")
    assert b" emulated " in masked(0o600, 0, "ps").stdout
    assert b"emulated" in masked(0o600, 0, "show", "a").stdout
    masked(0o600, 0, "kill-all")
