"""Whether KVM is trusted: who may open it is asked each time, and no verdict against it is for
ever."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from encamp.home import Home
from encamp.machines import accelerator, qemu
from encamp.machines.accelerator import DOUBT, LONGEST_DOUBT, Verdict, distrust, known
from encamp.model.driver import DriverName
from encamp.model.errors import Code, EncampError
from tests.site.siting import root_only

USER = (54321, 54322)
GROUP = 54323


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").prepare()


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A device that only root may open, in place of KVM's."""
    for directory in (tmp_path, *tmp_path.parents[:-2]):
        directory.chmod(directory.stat().st_mode | 0o711)
    path = tmp_path / "device"
    os.mknod(path, stat.S_IFCHR, os.makedev(1, 3))
    path.chmod(0o600)
    monkeypatch.setattr(accelerator, "KVM", path)
    monkeypatch.setattr(qemu, "KVM", path)
    return path


def works(home: Home) -> None:
    """A guest has answered under KVM."""
    accelerator._keep(
        home, Verdict(DriverName.KVM, "a guest answered", accelerator._evidence(), 0.0)
    )


def on_group(device: Path) -> None:
    os.chown(device, 0, GROUP)
    device.chmod(0o660)


def on_everybody(device: Path) -> None:
    device.chmod(0o666)


def on_list(device: Path) -> None:
    """As systemd-logind does for whoever sits before the host."""
    entries = ((0x01, 6, -1), (0x02, 6, USER[0]), (0x04, 0, -1), (0x10, 6, -1), (0x20, 0, -1))
    packed = struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", tag, rights, number & 0xFFFFFFFF) for tag, rights, number in entries
    )
    os.setxattr(device, "system.posix_acl_access", packed)


@root_only
@pytest.mark.parametrize("opened", [on_group, on_everybody, on_list])
def test_verdict_follows_who_may_open_the_device(
    home: Home, device: Path, opened: Callable[[Path], None]
) -> None:
    works(home)
    lost = known(home, USER)
    assert lost is not None
    assert (lost.driver, lost.lost) == (DriverName.EMULATION, True)
    assert "54321 may not open" in lost.reason
    assert f"chgrp kvm {device}" in lost.reason
    try:
        opened(device)
    except OSError:
        pytest.skip("no access control lists on this file system")
    found = known(home, USER)
    assert found is not None
    assert found.driver is DriverName.KVM
    device.chmod(0o000)
    closed = known(home, USER)
    assert closed is not None
    assert closed.driver is DriverName.EMULATION
    device.unlink()
    gone = known(home, USER)
    assert gone is not None
    assert (gone.driver, gone.lost) == (DriverName.EMULATION, False)
    assert "has no" in gone.reason


@root_only
def test_account_is_told_which_group_opens_the_device(home: Home, device: Path) -> None:
    """In a process of its own, which has become another account."""
    works(home)
    os.chown(device, 0, 4)  # adm, on Debian
    device.chmod(0o660)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresgid(2, 2, 2)
        os.setresuid(2, 2, 2)
        os.write(writing, (accelerator.denied(None) or "nothing").encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        assert said.read() == (
            f"bin may not open {device} (Permission denied);"
            " run 'usermod -aG adm bin' as root, then log in again"
        )
    os.waitpid(child, 0)


@root_only
def test_verdict_against_kvm_holds_for_a_while_and_longer_each_time(
    home: Home, device: Path
) -> None:
    held = []
    for _ in range(6):
        verdict = distrust(home, "silent")
        assert known(home, None) == verdict
        held.append(verdict.doubt)
        past = msgspec.structs.replace(verdict, decided=verdict.decided - verdict.doubt)
        accelerator._keep(home, past)
        assert known(home, None) is None
    assert held == [DOUBT, 4 * DOUBT, 16 * DOUBT, 64 * DOUBT, LONGEST_DOUBT, LONGEST_DOUBT]
    works(home)
    assert distrust(home, "refused").doubt == DOUBT


def test_refusal_of_kvm_is_told_from_other_ends_of_a_machine() -> None:
    said = "Could not access KVM kernel module: No such device\nqemu: failed to initialize kvm: No"
    lost = EncampError(Code.MACHINE_LOST, "The machine ended.", detail=said)
    assert accelerator.refused(lost)
    assert not accelerator.refused(EncampError(Code.MACHINE_LOST, "The machine ended."))
